#include "worker/tokenizers/sentencepiece_check.h"

#include <cstdint>
#include <cstring>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

// Fields of ModelProto, and of the NormalizerSpec in it.
constexpr uint64_t kNormalizerSpec = 3;
constexpr uint64_t kDenormalizerSpec = 5;
constexpr uint64_t kPrecompiledCharsMap = 2;

/// Protobuf's wire format: fields, one behind the other.
class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  /// False at the end. `content` is empty for a field that is no string, bytes or message.
  bool Next(uint64_t& field, std::string_view& content) {
    if (bytes_.empty()) {
      return false;
    }
    const uint64_t tag = Varint();
    field = tag >> 3;
    content = {};
    switch (tag & 7) {
      case 0:
        Varint();
        return true;
      case 1:
        Take(8);
        return true;
      case 2:
        content = Take(Varint());
        return true;
      case 5:
        Take(4);
        return true;
      default:
        Refuse();
    }
  }

 private:
  [[noreturn]] void Refuse() const {
    throw ConfigError(source_ + ": not a model of SentencePiece: it is no message of Protobuf");
  }
  std::string_view Take(uint64_t count) {
    if (count > bytes_.size()) {
      Refuse();
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(Take(1)[0]);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    Refuse();
  }

  std::string_view bytes_;
  const std::string& source_;
};

/// A unit of Darts-clone, the double array in which texts are looked up byte by byte.
struct Unit {
  uint32_t bits;
  bool is_value() const { return bits >> 31 != 0; }
  uint32_t value() const { return bits & 0x7fffffff; }
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t offset() const { return bits >> 10 << ((bits & 1U << 9) >> 6); }
};

/// Whether a lookup of any text stays within the array, and what it finds within `text_bytes`.
bool StaysWithin(std::string_view units, size_t text_bytes) {
  const size_t count = units.size() / sizeof(uint32_t);
  const auto at = [&](size_t index) {
    Unit unit{};
    std::memcpy(&unit.bits, units.data() + index * sizeof unit.bits, sizeof unit.bits);
    return unit;
  };
  for (size_t i = 0; i < count; ++i) {
    const Unit unit = at(i);
    // A lookup begins with the first one, whatever it is.
    if (unit.is_value() && i != 0) {
      continue;
    }
    // The next byte of a text is added to this by xor.
    const size_t base = i ^ unit.offset();
    if ((base | 0xff) >= count || (unit.has_leaf() && at(base).value() >= text_bytes)) {
      return false;
    }
  }
  return true;
}

/// A map is the size of the array, the array, and texts that end with a zero byte.
void CheckCharsMap(std::string_view map, const std::string& source) {
  uint32_t units_bytes = 0;
  const bool has_size = map.size() > sizeof units_bytes;
  if (has_size) {
    std::memcpy(&units_bytes, map.data(), sizeof units_bytes);
  }
  const bool has_units = has_size && units_bytes < map.size() - sizeof units_bytes &&
                         units_bytes >= sizeof(uint32_t) && units_bytes % sizeof(uint32_t) == 0;
  if (!has_units || map.back() != '\0' ||
      !StaysWithin(map.substr(sizeof units_bytes, units_bytes),
                   map.size() - sizeof units_bytes - units_bytes)) {
    throw ConfigError(source +
                      ": not a model of SentencePiece: normalizer_spec.precompiled_charsmap is "
                      "damaged; take the file from where it is whole");
  }
}

}  // namespace

void CheckSentencePieceModel(std::string_view model, const std::string& source) {
  uint64_t field = 0;
  std::string_view content;
  for (WireReader parts(model, source); parts.Next(field, content);) {
    if (field != kNormalizerSpec && field != kDenormalizerSpec) {
      continue;
    }
    std::string_view map;
    for (WireReader spec(content, source); spec.Next(field, map);) {
      if (field == kPrecompiledCharsMap && !map.empty()) {
        CheckCharsMap(map, source);
      }
    }
  }
}

}  // namespace fsdprun::worker
