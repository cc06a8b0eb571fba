#include "worker/tokenizers/decode_stream.h"

#include <string_view>

namespace fsdprun::worker {
namespace {

// A character has at most four bytes, and none of them fewer than one id.
constexpr size_t kMostIdsOfCharacter = 4;

/// Whether more bytes could change what stands at the end: a character that is not whole, or what
/// SentencePiece puts in its place.
bool MayGoOn(std::string_view text) {
  if (text.ends_with("\xef\xbf\xbd")) {
    return true;
  }
  for (size_t count = 1; count < kMostIdsOfCharacter && count <= text.size(); ++count) {
    const auto byte = static_cast<unsigned char>(text[text.size() - count]);
    if ((byte & 0xc0) != 0x80) {
      const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
      return length > count;
    }
  }
  return false;
}

}  // namespace

std::string DecodeStream::Next(uint32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.Decode(ids_);
  const size_t before =
      tokenizer_.Decode({ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(given_)}).size();
  if (text.size() <= before ||
      (MayGoOn(text.substr(before)) && ids_.size() - given_ < kMostIdsOfCharacter)) {
    return "";
  }
  // Spaces of SentencePiece depend on whether something stands before them.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(given_));
  given_ = ids_.size();
  return text.substr(before);
}

std::string DecodeStream::End() {
  const std::string text = tokenizer_.Decode(ids_);
  const size_t before =
      tokenizer_.Decode({ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(given_)}).size();
  ids_.clear();
  given_ = 0;
  return text.size() > before ? text.substr(before) : "";
}

}  // namespace fsdprun::worker
