#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/local/timer_table.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// The watchdog's end of a FIFO to which workers write when they enter a timed section and when
/// they leave it (torch.distributed.elastic.timer). Thread: loop thread only, or before and after
/// the loop runs.
class FileTimer {
 public:
  struct Callbacks {
    std::function<void(const ExpiredTimer&)> on_expired;
    /// A worker has shown life: it set or released a timer.
    std::function<void()> on_request;
  };

  /// Makes the FIFO, for this user only, in place of one that nobody reads or of an empty file.
  /// Touches the file system: before the loop runs. Errors: ALREADY_EXISTS if another process reads
  /// it; others name the path and the reason.
  static absl::StatusOr<std::unique_ptr<FileTimer>> Open(EventLoop& loop, const std::string& path);
  /// In place of Open(): the FIFO that an agent in whose place this one goes on has made for
  /// workers that run on, with the requests in it that nobody has read. Errors: NOT_FOUND if it is
  /// none of this user's.
  static absl::StatusOr<std::unique_ptr<FileTimer>> Adopt(EventLoop& loop, const std::string& path);
  /// Removes the FIFO, if the path still is its name: after the loop.
  ~FileTimer();
  FileTimer(const FileTimer&) = delete;
  FileTimer& operator=(const FileTimer&) = delete;

  void SetCallbacks(Callbacks callbacks) { callbacks_ = std::move(callbacks); }
  /// Workers of a new world are about to start: requests of earlier ones mean nothing any more.
  void Clear();
  /// The process has ended.
  void Drop(int32_t pid);
  const std::string& path() const { return path_; }
  /// Workers can write as long as anybody has it open.
  int fd() const { return fifo_.get(); }

 private:
  FileTimer(EventLoop& loop, std::string path, UniqueFd fifo);

  void Read();
  void TakeLines();
  void Take(absl::string_view line);
  void Warn(absl::string_view what);
  void Schedule();
  void OnDeadline();

  // Constant after construction.
  EventLoop& loop_;
  const std::string path_;
  /// Open for writing, too: a FIFO without a writer would be at its end, again and again.
  const UniqueFd fifo_;

  // Owned by the loop thread.
  Callbacks callbacks_;
  TimerTable timers_;
  std::string incoming_;
  bool is_skipping_line_ = false;
  bool has_warned_ = false;
  MonoTime wake_at_ = MonoTime::max();
  EventLoop::TimerId wake_timer_ = 0;
};

}  // namespace fsdprun
