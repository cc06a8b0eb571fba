#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::ckpt {

/// "1.34 GB": powers of 1000, as Hugging Face counts.
std::string BytesText(int64_t bytes);

/// "12 s", "5 min", "3 h", "2 days".
std::string AgeText(int64_t seconds);

/// "[2048, 512]"
std::string ShapeText(const std::vector<int64_t>& shape);

/// "5GB", "512MiB", "1000": bytes; nullopt if it is no size of at least one byte.
std::optional<int64_t> ParseBytes(std::string_view text);

/// Rows as aligned columns, each row on its line; the last column is not padded.
std::string TableText(const std::vector<std::vector<std::string>>& rows);

/// Control characters of a name from a file, which a terminal would obey, as '?'.
std::string Printable(std::string text);

}  // namespace fsdprun::ckpt
