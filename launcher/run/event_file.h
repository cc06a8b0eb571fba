#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"

namespace fsdprun {

/// Appends lines to a file on a thread of its own: a full disk or a file system that hangs costs
/// events, which are counted and told of, and nothing else. Thread: the loop's.
class EventFile {
 public:
  /// Lines that wait for the file system.
  static constexpr size_t kMaxWaiting = 10'000;

  /// Makes what the file lies in, on the thread, and returns its path.
  using MakePath = std::function<absl::StatusOr<std::string>()>;

  /// The file is made with the first line, and kept if it is there.
  EventFile(EventLoop& loop, std::string path);
  /// So is the folder that it lies in. `name` is for what is said of it before.
  EventFile(EventLoop& loop, std::string name, MakePath make);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// `line` without its newline.
  void Append(std::string line);
  /// Writes a file of this name into the folder in which the lines are, in the place of one that is
  /// there. What goes wrong is logged.
  void LeaveBeside(std::string name, std::string text);
  /// Waits until all is written, or until `deadline`, and says what could not be. For when the loop
  /// has ended.
  void Finish(MonoTime deadline);

 private:
  /// Shared with the thread.
  struct File;

  void WriteWaiting();
  void WriteBeside();
  void OnWritten(size_t lines);

  // Constant after construction.
  const std::string name_;
  const std::shared_ptr<File> file_;

  std::vector<std::string> waiting_;
  /// Names and texts of LeaveBeside().
  std::deque<std::pair<std::string, std::string>> beside_;
  bool is_writing_ = false;
  bool has_warned_ = false;
  size_t lost_ = 0;
  /// Last: its tasks end before the rest does.
  FileThread files_;
};

}  // namespace fsdprun
