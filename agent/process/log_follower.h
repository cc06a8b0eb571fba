#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace fsdprun {

/// Hands out the lines of a growing log file, so that the console shows whole lines although
/// several workers write at once. Bytes are passed as they are: invalid UTF-8 and carriage returns
/// stay. Memory: at most kMaxPieceBytes are kept. Thread: one at a time; reads a local file, which
/// may block for its disk.
class LogFollower {
 public:
  /// A longer line is handed out in pieces of this size, of which only the last is marked as the
  /// end of the line.
  static constexpr size_t kMaxPieceBytes = 64u << 10;

  /// `text` has no newline. `starts_line`: the prefix belongs here. `ends_line`: a newline belongs
  /// after it.
  using LineSink = std::function<void(std::string_view text, bool starts_line, bool ends_line)>;

  LogFollower(std::string path, LineSink sink);

  /// The file holds `size_bytes` (LogGrewReport): hands out the lines completed by that. A file
  /// that shrank or cannot be read is skipped; the keeper's report of its own failure comes
  /// separately.
  void GrewTo(uint64_t size_bytes);
  /// The same for bytes that did not reach the file (LogDataReport).
  void Feed(std::string_view data);
  /// The stream has ended: hands out a last line without newline.
  void Finish();

 private:
  void Emit(std::string_view text, bool ends_line);

  const std::string path_;
  const LineSink sink_;
  UniqueFd file_;
  uint64_t offset_ = 0;
  std::string partial_;
  bool in_line_ = false;
};

/// The last `line_count` lines of a file, without newlines, reading at most `max_bytes` from its
/// end. A first line that was cut by `max_bytes` starts with "...". Empty when there is no such
/// file.
std::vector<std::string> TailLines(const std::string& path, int line_count, size_t max_bytes);

}  // namespace fsdprun
