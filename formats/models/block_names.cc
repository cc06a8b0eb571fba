#include "formats/models/block_names.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace fsdprun {

std::optional<int64_t> BlockOf(std::string_view name) {
  while (!name.empty()) {
    const size_t length = std::min(name.find('.'), name.size());
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + length, number);
    if (error == std::errc() && end == name.data() + length && name.front() != '-') {
      return number;
    }
    name.remove_prefix(std::min(length + 1, name.size()));
  }
  return std::nullopt;
}

}  // namespace fsdprun
