#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::keeper {

/// The last bytes of a stream. Memory: twice `capacity_bytes`, taken by the constructor.
class OutputTail {
 public:
  explicit OutputTail(size_t capacity_bytes);

  void Append(std::string_view bytes);
  /// The last `capacity_bytes`, or all there was; valid until the next Append.
  std::string_view Text() const;
  /// There was output before Text().
  bool is_cut() const { return total_bytes_ > capacity_bytes_; }

 private:
  const size_t capacity_bytes_;
  /// Ends with Text(); what precedes it is erased only from time to time, because erasing moves the
  /// rest.
  std::string kept_;
  uint64_t total_bytes_ = 0;
};

/// The last `line_count` lines of `text`, without newlines. If `text` `is_cut`, its first line
/// starts with "...", since its beginning is missing.
std::vector<std::string> LastLines(std::string_view text, int line_count, bool is_cut);

}  // namespace fsdprun::keeper
