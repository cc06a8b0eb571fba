#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Tells when files are written to (inotify). Where the system has no more watches, it says five
/// times a second that a file may have been. Thread: loop thread only.
class FileGrowth {
 public:
  explicit FileGrowth(EventLoop& loop);
  ~FileGrowth();
  FileGrowth(const FileGrowth&) = delete;
  FileGrowth& operator=(const FileGrowth&) = delete;

  /// False if the system has no more of them; nothing is told then.
  bool is_valid() const { return fd_.valid(); }
  /// Calls `on_growth` after every write, or several of them, of a file that is there; -1 if it is
  /// not. Unwatch() may be called within.
  int Watch(const std::string& path, std::function<void()> on_growth);
  void Unwatch(int watch);

 private:
  static constexpr int kNotWatched = -1;

  void OnEvents();
  void TellAll(const std::function<bool(int watch)>& which);
  void Poll();

  EventLoop& loop_;
  const UniqueFd fd_;
  /// Those below kNotWatched are polled.
  std::map<int, std::function<void()>> watches_;
  int last_polled_ = kNotWatched;
  EventLoop::TimerId poll_timer_ = 0;
};

}  // namespace fsdprun
