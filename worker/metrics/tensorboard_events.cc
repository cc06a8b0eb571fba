#include "worker/metrics/tensorboard_events.h"

#include <array>
#include <cstring>

namespace fsdprun::worker::tensorboard {
namespace {

// Wire types of protobuf.
constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kFixed32 = 5;

// Fields of Event.
constexpr uint32_t kWallTime = 1;
constexpr uint32_t kStep = 2;
constexpr uint32_t kFileVersion = 3;
constexpr uint32_t kSummary = 5;
constexpr uint32_t kSessionLog = 7;

template <class T>
void AppendLittleEndian(std::string& out, T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));  // the low bytes, on the little-endian machines there are
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>(bits >> (8 * i)));
  }
}

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>(value | 0x80));
  }
  out.push_back(static_cast<char>(value));
}

void AppendKey(std::string& out, uint32_t field, uint32_t wire_type) {
  AppendVarint(out, field << 3 | wire_type);
}

void AppendInteger(std::string& out, uint32_t field, int64_t value) {
  AppendKey(out, field, kVarint);
  AppendVarint(out, static_cast<uint64_t>(value));
}

void AppendBytes(std::string& out, uint32_t field, std::string_view value) {
  AppendKey(out, field, kBytes);
  AppendVarint(out, value.size());
  out.append(value);
}

void AppendDouble(std::string& out, uint32_t field, double value) {
  AppendKey(out, field, kFixed64);
  AppendLittleEndian(out, value);
}

void AppendFloat(std::string& out, uint32_t field, float value) {
  AppendKey(out, field, kFixed32);
  AppendLittleEndian(out, value);
}

std::string EventAt(double wall_time, int64_t step) {
  std::string event;
  AppendDouble(event, kWallTime, wall_time);
  if (step != 0) {  // which is what readers take it for
    AppendInteger(event, kStep, step);
  }
  return event;
}

/// Of a Summary: its field 1 is a Value, whose field 1 is the tag.
std::string ValueOf(std::string_view tag) {
  std::string value;
  AppendBytes(value, 1, tag);
  return value;
}

std::array<uint32_t, 256> MakeCrcTable() {
  constexpr uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, reversed
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? crc >> 1 ^ kPolynomial : crc >> 1;
    }
    table[byte] = crc;
  }
  return table;
}

}  // namespace

uint32_t Crc32c(std::string_view data) {
  static const std::array<uint32_t, 256> table = MakeCrcTable();
  uint32_t crc = ~uint32_t{0};
  for (const char character : data) {
    crc = table[(crc ^ static_cast<unsigned char>(character)) & 0xFF] ^ crc >> 8;
  }
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view data) {
  const uint32_t crc = Crc32c(data);
  return (crc >> 15 | crc << 17) + 0xA282EAD8;
}

std::string Frame(std::string_view event) {
  std::string record;
  AppendLittleEndian(record, static_cast<uint64_t>(event.size()));
  AppendLittleEndian(record, MaskedCrc32c(record));
  record.append(event);
  AppendLittleEndian(record, MaskedCrc32c(event));
  return record;
}

std::string VersionEvent(double wall_time) {
  std::string event;
  AppendDouble(event, kWallTime, wall_time);
  AppendBytes(event, kFileVersion, "brain.Event:2");
  return event;
}

std::string StartEvent(double wall_time, int64_t step) {
  constexpr int64_t kStart = 1;
  std::string session;
  AppendInteger(session, 1, kStart);
  std::string event = EventAt(wall_time, step);
  AppendBytes(event, kSessionLog, session);
  return event;
}

std::string ScalarsEvent(double wall_time, int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value = ValueOf(scalar.tag);
    AppendFloat(value, 2, static_cast<float>(scalar.value));
    AppendBytes(summary, 1, value);
  }
  std::string event = EventAt(wall_time, step);
  AppendBytes(event, kSummary, summary);
  return event;
}

std::string MarkdownEvent(double wall_time, std::string_view tag, std::string_view markdown) {
  constexpr int64_t kString = 7;  // DT_STRING
  std::string dimension;
  AppendInteger(dimension, 1, 1);
  std::string shape;
  AppendBytes(shape, 2, dimension);
  std::string tensor;
  AppendInteger(tensor, 1, kString);
  AppendBytes(tensor, 2, shape);
  AppendBytes(tensor, 8, markdown);
  std::string plugin;
  AppendBytes(plugin, 1, "text");
  std::string metadata;
  AppendBytes(metadata, 1, plugin);
  std::string value = ValueOf(tag);
  AppendBytes(value, 8, tensor);
  AppendBytes(value, 9, metadata);
  std::string summary;
  AppendBytes(summary, 1, value);
  std::string event = EventAt(wall_time, 0);
  AppendBytes(event, kSummary, summary);
  return event;
}

}  // namespace fsdprun::worker::tensorboard
