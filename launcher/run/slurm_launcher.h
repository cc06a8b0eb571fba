#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/node/clocks.h"
#include "agent/node/cluster_types.h"
#include "agent/store/store_server.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/directory/directory.h"
#include "launcher/run/coordinator_host.h"
#include "launcher/run/job_output.h"
#include "launcher/run/signals.h"
#include "launcher/run/srun_step.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/srun_message.h"

namespace fsdprun {

/// A job that is started in the shell of a Slurm allocation: the coordinator in this process, and
/// one srun that starts this same command line on each node, where it is an agent. Thread: the main
/// thread, which also runs the loop. All arguments must outlive it.
class SlurmLauncher {
 public:
  /// `command`: this program and its arguments, for the nodes.
  SlurmLauncher(const LaunchPlan& plan, const Environment& environment,
                const SlurmAllocation& allocation, std::vector<std::string> command);
  ~SlurmLauncher();
  SlurmLauncher(const SlurmLauncher&) = delete;
  SlurmLauncher& operator=(const SlurmLauncher&) = delete;

  /// Runs until the job is over and the step has ended. Returns the exit code. Call once.
  int Run();

 private:
  absl::Status Start();
  absl::Status Host();
  absl::Status StartStep();

  // Events.
  void OnSignal(int signal);
  void OnFinish(const JobOutcome& outcome);
  void OnStepLines(absl::string_view lines);
  void OnStepEnd(int code);
  void OnCoordinatorStep();
  void OnTasksEnded(const SrunTasksEnded& ended);
  void EndIfTooFewAreLeft();
  void ScheduleWaitNotice();
  void PrintWaitNotice();

  int Finish();

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const SlurmAllocation& allocation_;
  const std::vector<std::string> command_;
  const Clocks clocks_;

  EventLoop loop_;
  SignalWatcher signals_;
  JobOutput output_;

  // Set by Start().
  Place place_;
  std::unique_ptr<CoordinatorHost> host_;
  /// At the coordinator's port; here it only tells agents from strangers.
  std::unique_ptr<StoreServer> door_;
  std::unique_ptr<SrunStep> step_;

  /// Nodes that have joined at least once, and those whose agent has ended since.
  std::set<std::string> joined_;
  std::set<std::string> ended_;
  std::string last_srun_error_;
  std::optional<int> step_code_;
  std::optional<JobOutcome> outcome_;
  /// Why the job is over although the coordinator has not said so.
  std::string lost_reason_;
  int own_signal_ = 0;
};

}  // namespace fsdprun
