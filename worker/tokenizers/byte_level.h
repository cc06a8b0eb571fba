#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdprun::worker {

/// The bytes of a token as a byte-level vocabulary spells them, each as one printable character
/// (GPT-2's table: "Ġ" for a space). None if a character of `token`, UTF-8, stands for no byte.
/// Pure.
std::optional<std::string> BytesOfToken(std::string_view token);

/// The other way round. Pure.
std::string TokenOfBytes(std::string_view bytes);

}  // namespace fsdprun::worker
