#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "base/repeater.h"
#include "launcher/chaos/plan/job_view.h"
#include "launcher/control/job_file.h"

namespace fsdprun::chaos {

/// Asks a job again and again for its state and its events, whichever process hosts its coordinator
/// by then (JobFollower). Thread: the loop's; asks on two of its own.
class JobWatch {
 public:
  struct Hooks {
    std::function<void(const JobView& view)> on_view;
    /// A failure in the job's own words.
    std::function<void(const std::string& what)> on_failure;
    std::function<void(int exit_code)> on_finished;
  };
  struct Which {
    /// The jobs of this user on this machine among which it is, the oldest first. Called on a
    /// thread.
    std::function<std::vector<JobEntry>()> list;
    /// The one that is meant; unset: the oldest that `list` has at first.
    std::optional<JobEntry> job;
    /// Unix time: failures from before are no news.
    int64_t since_ms = 0;
  };

  JobWatch(EventLoop& loop, Which which, Hooks hooks);
  /// Waits for answers that are under way, some seconds at most.
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

}  // namespace fsdprun::chaos
