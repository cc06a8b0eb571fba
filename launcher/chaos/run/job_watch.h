#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "base/mutex.h"
#include "base/repeater.h"
#include "launcher/chaos/plan/job_view.h"
#include "launcher/control/job_file.h"

namespace fsdprun::chaos {

/// Asks a job again and again for its state and its events, whichever process hosts its coordinator
/// by then. Thread: the loop's; asks on two of its own.
class JobWatch {
 public:
  struct Hooks {
    std::function<void(const JobView& view)> on_view;
    /// A failure in the job's own words.
    std::function<void(const std::string& what)> on_failure;
    std::function<void(int exit_code)> on_finished;
  };
  /// Which of this user's jobs on this machine is meant; nothing if it is not there now. Called on
  /// the threads.
  using Find = std::function<std::optional<JobEntry>()>;

  JobWatch(EventLoop& loop, Find find, Hooks hooks);
  /// Waits for answers that are under way, 2 s at most.
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

 private:
  struct Shared;

  const LoopGate gate_;
  const std::shared_ptr<Shared> shared_;
  Repeater states_;
  Repeater events_;
};

/// Finds a job again whose coordinator may die and be started again. Thread-safe.
class JobFollower {
 public:
  explicit JobFollower(JobEntry job) : job_(std::move(job)) {}

  /// The entry that was known last, if it is among `jobs`; else the only one of the same run id
  /// that began later: with several nobody knows which one it is.
  std::optional<JobEntry> Find(const std::vector<JobEntry>& jobs);

 private:
  Mutex mu_;
  JobEntry job_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fsdprun::chaos
