#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fsdprun {

/// The last `line_count` lines of a file, without newlines, reading at most `max_bytes` from its
/// end. A first line that was cut by `max_bytes` starts with "...". Empty when there is no such
/// file.
std::vector<std::string> TailLines(const std::string& path, int line_count, size_t max_bytes);

}  // namespace fsdprun
