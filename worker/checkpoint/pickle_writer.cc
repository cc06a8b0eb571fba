#include "worker/checkpoint/pickle_writer.h"

#include <bit>
#include <limits>
#include <utility>

#include "worker/checkpoint/error.h"

namespace fsdprun::worker::checkpoint {

void PickleWriter::LittleEndian(uint64_t value, int byte_count) {
  for (int i = 0; i < byte_count; ++i) {
    out_ += static_cast<char>(value >> (8 * i));
  }
}

void PickleWriter::Int(int64_t value) {
  if (value >= 0 && value <= 0xff) {
    out_ += 'K';
    LittleEndian(static_cast<uint64_t>(value), 1);
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    out_ += 'J';
    LittleEndian(static_cast<uint64_t>(value), 4);
  } else {
    out_ += '\x8a';
    out_ += '\x08';
    LittleEndian(static_cast<uint64_t>(value), 8);
  }
}

void PickleWriter::UInt(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    Int(static_cast<int64_t>(value));
    return;
  }
  // LONG1 is two's complement: a ninth byte keeps the number positive.
  out_ += '\x8a';
  out_ += '\x09';
  LittleEndian(value, 8);
  LittleEndian(0, 1);
}

void PickleWriter::Float(double value) {
  out_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int i = 7; i >= 0; --i) {
    out_ += static_cast<char>(bits >> (8 * i));
  }
}

void PickleWriter::String(std::string_view text) {
  if (text.size() > std::numeric_limits<uint32_t>::max()) {
    throw CheckpointError("cannot pickle a string of " + std::to_string(text.size()) +
                          " bytes: protocol 2 ends at 4 GiB");
  }
  out_ += 'X';
  LittleEndian(text.size(), 4);
  out_ += text;
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

std::string PickleWriter::Finish() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace fsdprun::worker::checkpoint
