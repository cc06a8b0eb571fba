#pragma once

#include <string>
#include <string_view>

namespace fsdprun::worker {

/// Whether `text`, UTF-8, is surely in NFC already: nothing of it is above U+02FF. Pure.
bool IsSurelyNfc(std::string_view text);

/// `text`, UTF-8, in Unicode's normalization form C, as the Python package tokenizers 0.23 has it
/// (Note [Unicode versions]). Memory: some times that of the longest line. Pure.
std::string ToNfc(std::string_view text);

}  // namespace fsdprun::worker
