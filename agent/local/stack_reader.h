#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "fsdprun/v1/aside.pb.h"

namespace fsdprun {

/// A worker whose stacks are wanted.
struct ReadWorker {
  int rank = 0;
  pid_t pid = 0;
};

/// Reads what the threads of workers are doing, with programs that look at them from outside:
/// fsdp-stacks, and py-spy where it is installed and the worker is a Python program. A thread of
/// the worker stands still while its own stack is read, and no longer. Thread: loop thread only;
/// the programs are waited for on another.
class StackReader {
 public:
  struct Programs {
    /// Empty: not there.
    std::string native;
    std::string python;
  };

  /// For one program and worker; what has been read by then is told.
  static constexpr Duration kLimit = std::chrono::seconds(10);
  static constexpr size_t kMaxTextBytes = 256u << 10;

  StackReader(EventLoop& loop, Programs programs, Duration limit = kLimit)
      : programs_(std::move(programs)), limit_(limit), thread_(loop) {}
  StackReader(const StackReader&) = delete;
  StackReader& operator=(const StackReader&) = delete;

  /// One worker after the other: `on_read` for each, and `then` at the end.
  void Read(const std::vector<ReadWorker>& workers,
            const std::function<void(v1::WorkerStacks)>& on_read,
            const std::function<void()>& then);

 private:
  const Programs programs_;
  const Duration limit_;
  FileThread thread_;
};

/// fsdp-stacks beside the keeper, and py-spy in one of the folders of `path`.
StackReader::Programs FindStackPrograms(const std::string& keeper_path, const std::string& path);

/// Whether a program is Python, by its executable and the names of the files that it has mapped
/// (the text of /proc/PID/maps). Pure.
bool IsPython(const std::string& executable, const std::string& maps);

}  // namespace fsdprun
