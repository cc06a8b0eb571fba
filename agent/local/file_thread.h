#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/mutex.h"

namespace fsdprun {

/// Does what touches files on a thread of its own: a file system that hangs then stops neither
/// heartbeats nor orders. One task after another. Thread: the loop's, for every method.
class FileThread {
 public:
  using Closure = absl::AnyInvocable<void()>;

  static constexpr Duration kEndLimit = std::chrono::seconds(1);

  /// `end_limit`: for how long the destructor waits for a task that is running.
  explicit FileThread(EventLoop& loop, Duration end_limit = kEndLimit);
  /// Drops what has not begun. A task that hangs is not waited for longer than the limit: the
  /// thread is then left to itself and touches nothing but what its task owns.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  /// Runs `task` on the thread (here if none can be started), then `then` on the loop, or in
  /// RunFinished() or Await() if one of them comes first. Both own what they use. Neither runs
  /// after the destructor has begun, but a task that is running goes on.
  void Run(Closure task, Closure then);
  /// Runs `then` of the tasks that are done; for when the loop does not run any more.
  void RunFinished();
  /// The same, after waiting until one is done; false if none is by `deadline`.
  bool Await(MonoTime deadline);

 private:
  struct Task {
    Closure work;
    Closure then;
  };
  /// Shared with the thread, which may outlive the object.
  struct Shared {
    explicit Shared(EventLoop& l) : loop(l) {}

    EventLoop& loop;
    Mutex mu;
    CondVar changed;
    std::deque<Task> tasks ABSL_GUARDED_BY(mu);
    std::deque<Closure> finished ABSL_GUARDED_BY(mu);
    /// Set by the destructor; the loop may be gone afterwards.
    bool is_ending ABSL_GUARDED_BY(mu) = false;
    bool has_ended ABSL_GUARDED_BY(mu) = false;
  };

  void StartThread();
  static void ThreadMain(const std::shared_ptr<Shared>& shared);
  static bool DoNext(const std::shared_ptr<Shared>& shared) ABSL_LOCKS_EXCLUDED(shared->mu);
  static void RunFinished(Shared& shared) ABSL_LOCKS_EXCLUDED(shared.mu);

  const Duration end_limit_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace fsdprun
