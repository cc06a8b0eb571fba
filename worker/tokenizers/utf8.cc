#include "worker/tokenizers/utf8.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstring>

namespace fsdprun::worker {
namespace {

utf8proc_ssize_t Iterate(std::string_view text, utf8proc_int32_t& code_point) {
  return utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                          static_cast<utf8proc_ssize_t>(text.size()), &code_point);
}

/// Of the bytes at the start of `text`, which is not empty and begins with no character, those that
/// could begin one; at least one.
size_t BrokenBytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t length = first >= 0xf0 && first <= 0xf4 ? 4 : first >= 0xe0 && first < 0xf0 ? 3 : 1;
  size_t count = 1;
  while (count + 1 < length && count < text.size()) {
    const auto byte = static_cast<unsigned char>(text[count]);
    // What may follow depends on the first byte: no overlong forms, surrogates, or planes above 16.
    const unsigned low = count > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = count > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte < low || byte > high) {
      break;
    }
    ++count;
  }
  return count;
}

}  // namespace

size_t ValidUtf8Bytes(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = kHighBits;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
    }
    if ((eight & kHighBits) == 0) {
      at += sizeof eight;
      continue;
    }
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t length = Iterate(text.substr(at), code_point);
    if (length <= 0) {
      return at;
    }
    at += static_cast<size_t>(length);
  }
  return at;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  for (;;) {
    const size_t valid = ValidUtf8Bytes(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) {
      return out;
    }
    out += "\xef\xbf\xbd";
    text.remove_prefix(BrokenBytes(text));
  }
}

Utf8Character FirstCharacter(std::string_view text) {
  utf8proc_int32_t code_point = 0;
  const utf8proc_ssize_t length = Iterate(text, code_point);
  return {static_cast<char32_t>(code_point), static_cast<size_t>(length)};
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

}  // namespace fsdprun::worker
