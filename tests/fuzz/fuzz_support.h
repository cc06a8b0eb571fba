#pragma once

// Shared by the fuzz targets. A target aborts (FSDPRUN_CHECK) when an input violates a property of
// its component; libFuzzer and the sanitizers report everything else.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdprun::fuzz {

/// The input as text.
inline std::string_view AsText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// True if `text` is not empty and has no control characters: an error message must stay one line
/// of a log and must not control a terminal, whatever the input contains.
bool IsOneLine(std::string_view text);

/// Checks on destruction that heap use never grew by more than `limit_bytes` since construction. At
/// most one exists at a time.
class MemoryBound {
 public:
  explicit MemoryBound(size_t limit_bytes);
  ~MemoryBound();
  MemoryBound(const MemoryBound&) = delete;
  MemoryBound& operator=(const MemoryBound&) = delete;

 private:
  const size_t limit_bytes_;
};

}  // namespace fsdprun::fuzz
