#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Tells when files are written to (inotify). Thread: loop thread only.
class FileGrowth {
 public:
  explicit FileGrowth(EventLoop& loop);
  ~FileGrowth();
  FileGrowth(const FileGrowth&) = delete;
  FileGrowth& operator=(const FileGrowth&) = delete;

  /// False if the system has no more of them; nothing is told then.
  bool is_valid() const { return fd_.valid(); }
  /// Calls `on_growth` after every write, or several of them, of a file that is there. -1 if that
  /// cannot be had.
  int Watch(const std::string& path, std::function<void()> on_growth);
  void Unwatch(int watch);

 private:
  void OnEvents();

  EventLoop& loop_;
  const UniqueFd fd_;
  std::map<int, std::function<void()>> watches_;
};

}  // namespace fsdprun
