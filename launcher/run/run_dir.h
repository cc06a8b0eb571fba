#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "agent/local/log_paths.h"
#include "base/event_loop.h"
#include "base/mono_time.h"

namespace fsdprun {

/// Makes the directories of the next agent, and removes the last one's logs if they are empty, on a
/// thread of its own: a file system that hangs stops neither signals nor the end. Thread: the
/// loop's.
class RunDirChange {
 public:
  static constexpr Duration kLimit = std::chrono::seconds(10);

  struct Result {
    /// DEADLINE_EXCEEDED: the file system did not answer.
    absl::StatusOr<RunDirs> dirs;
    bool is_old_removed = false;
  };
  /// Runs on the thread, and maybe after this object has ended: it must own what it uses.
  using MakeDirs = std::function<absl::StatusOr<RunDirs>()>;
  /// Runs on the loop, once, and not after this object has ended. Must not destroy it.
  using Then = std::function<void(const Result&)>;

  RunDirChange(EventLoop& loop, std::string old_dir, MakeDirs make, Then then,
               Duration limit = kLimit);
  ~RunDirChange();
  RunDirChange(const RunDirChange&) = delete;
  RunDirChange& operator=(const RunDirChange&) = delete;

 private:
  void Tell(const Result& result);

  EventLoop& loop_;
  Then then_;
  FileThread files_;
  EventLoop::TimerId timer_ = 0;
};

/// False if the directory is still there, or its file system does not answer within 1 s.
bool RemoveIfEmpty(EventLoop& loop, const std::string& directory);

/// The same, after removing the folders below it in which no files are.
bool RemoveEmptyFolders(EventLoop& loop, const std::string& directory);

/// Removes a directory with its content, unless its file system hangs for 60 s. For when the loop
/// has ended.
void RemoveTree(EventLoop& loop, const std::string& directory);

}  // namespace fsdprun
