#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "base/repeater.h"
#include "launcher/chaos/plan/job_view.h"
#include "launcher/cli/option_table.h"
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

/// This user's jobs with that run id: the one whose coordinator began last.
std::optional<JobEntry> FindByRunId(const Environment& environment, const std::string& run_id);

}  // namespace fsdprun::chaos
