#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdprun::worker {

/// How many bytes of `text` are UTF-8 before the first that are not; text.size() if all are. Pure.
size_t ValidUtf8Bytes(std::string_view text);

/// `text` with U+FFFD in place of what is not UTF-8: one for each longest beginning of a character,
/// as Python's errors="replace" and Rust's from_utf8_lossy. Pure.
std::string ReplaceInvalidUtf8(std::string_view text);

/// The first character of `text`, which is UTF-8 and not empty, and its bytes. Pure.
struct Utf8Character {
  char32_t code_point;
  size_t byte_count;
};
Utf8Character FirstCharacter(std::string_view text);

/// White_Space of Unicode. Pure.
bool IsWhiteSpace(char32_t code_point);

}  // namespace fsdprun::worker
