#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdprun::worker {

// Just as much of Protobuf's wire format as a model of SentencePiece needs.

inline std::string ProtoNumber(int field, uint64_t value) {
  std::string out(1, static_cast<char>(field << 3));
  do {
    out += static_cast<char>((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    value >>= 7;
  } while (value != 0);
  return out;
}

inline std::string ProtoBytes(int field, std::string_view bytes) {
  std::string out(1, static_cast<char>(field << 3 | 2));
  out += ProtoNumber(0, bytes.size()).substr(1);
  out += bytes;
  return out;
}

inline std::string ProtoFloat(int field, float value) {
  std::string out(1, static_cast<char>(field << 3 | 5));
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  return out.append(bytes, sizeof bytes);
}

/// A model of BPE with the pieces <unk>, <s>, </s>, "▁", "a", "b", "▁a", "ab": ids 0 to 7.
/// `charsmap`: its table of how text is normalized, if it has one.
inline std::string SmallModel(std::string_view charsmap = {}) {
  enum { kNormal = 1, kUnknown = 2, kControl = 3 };
  const std::vector<std::pair<std::string, int>> pieces = {
      {"<unk>", kUnknown}, {"<s>", kControl}, {"</s>", kControl}, {"▁", kNormal},
      {"a", kNormal},      {"b", kNormal},    {"▁a", kNormal},    {"ab", kNormal}};
  std::string model;
  float score = 0;
  for (const auto& [piece, type] : pieces) {
    model += ProtoBytes(1, ProtoBytes(1, piece) + ProtoFloat(2, score) +
                               ProtoNumber(3, static_cast<uint64_t>(type)));
    score -= 1;
  }
  model += ProtoBytes(2, ProtoNumber(3, 2));  // trainer_spec.model_type = BPE
  model += ProtoBytes(3, ProtoBytes(1, "identity") +
                             (charsmap.empty() ? std::string() : ProtoBytes(2, charsmap)) +
                             ProtoNumber(3, 1));  // add_dummy_prefix
  return model;
}

}  // namespace fsdprun::worker
