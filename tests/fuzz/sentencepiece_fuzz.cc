// A model of SentencePiece -> whether its library may read it: the library looks texts up in a
// double array of the model without looking where that points. The first byte says which: 'm' a
// model, 'c' the array with its texts alone, of which a model is made. In what is accepted, every
// lookup stays within.

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "formats/json/strict_json.h"
#include "tests/fuzz/fuzz_support.h"
#include "worker/tokenizers/sentencepiece_check.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kLookups = 300;
constexpr size_t kMostKeyBytes = 32;

bool IsAccepted(std::string_view model) {
  try {
    const fuzz::MemoryBound bound(64 << 10);
    CheckSentencePieceModel(model, "the file");
    return true;
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return false;
  }
}

/// A field of bytes in Protobuf's wire format.
std::string Field(int number, std::string_view content) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  size_t rest = content.size();
  for (; rest >= 0x80; rest >>= 7) {
    out += static_cast<char>((rest & 0x7f) | 0x80);
  }
  out += static_cast<char>(rest);
  return out.append(content);
}

/// What the library does with a map: Darts-clone's commonPrefixSearch, but with its places checked.
class CheckedMap {
 public:
  explicit CheckedMap(std::string_view map) {
    uint32_t bytes = 0;
    std::memcpy(&bytes, map.data(), sizeof bytes);
    units_ = map.substr(sizeof bytes, bytes);
    texts_ = map.substr(sizeof bytes + bytes);
    FSDPRUN_CHECK(units_.size() == bytes && texts_.ends_with('\0'), "a map that is cut short");
  }

  void LookUp(std::string_view key) const {
    uint32_t node = OffsetOf(At(0));
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      node ^= byte;
      const uint32_t unit = At(node);
      if ((unit & 0x800000ff) != byte) {
        return;
      }
      node ^= OffsetOf(unit);
      if ((unit >> 8 & 1) != 0) {
        FSDPRUN_CHECK((At(node) & 0x7fffffff) < texts_.size(), "a text outside the map");
      }
    }
  }

 private:
  uint32_t At(uint32_t index) const {
    uint32_t unit = 0;
    FSDPRUN_CHECK(index < units_.size() / sizeof unit, "a unit outside the map");
    std::memcpy(&unit, units_.data() + index * sizeof unit, sizeof unit);
    return unit;
  }
  static uint32_t OffsetOf(uint32_t unit) { return unit >> 10 << ((unit & 1U << 9) >> 6); }

  std::string_view units_;
  std::string_view texts_;
};

void FuzzMap(std::string_view map) {
  if (map.empty() || !IsAccepted(Field(3, Field(2, map)))) {
    return;
  }
  const CheckedMap checked(map);
  for (int byte = 0; byte < 256; ++byte) {
    checked.LookUp(std::string(1, static_cast<char>(byte)));
  }
  for (size_t at = 0; at < std::min(map.size(), kLookups); ++at) {
    checked.LookUp(map.substr(at, kMostKeyBytes));
  }
}

}  // namespace
}  // namespace fsdprun::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fsdprun::fuzz::AsText(data, size);
  if (input.starts_with('m')) {
    fsdprun::worker::IsAccepted(input.substr(1));
  } else if (input.starts_with('c')) {
    fsdprun::worker::FuzzMap(input.substr(1));
  }
  return 0;
}
