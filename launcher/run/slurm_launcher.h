#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/child_command.h"
#include "launcher/run/head_coordinator.h"
#include "launcher/run/job_output.h"
#include "launcher/run/own_join_record.h"
#include "launcher/run/signals.h"
#include "launcher/run/slurm_queue.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/srun_message.h"
#include "launcher/slurm/step_stop.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// A job that is started in the shell of a Slurm allocation: the coordinator in this process, and
/// one srun that starts this same command line on each node, where it is an agent. Thread: the main
/// thread, which also runs the loop. All arguments must outlive it.
class SlurmLauncher {
 public:
  /// What it works with, and how long that may take.
  struct Means {
    /// Makes what serves the record for nodes that join, alone.
    std::function<std::unique_ptr<FileThread>(EventLoop& loop)> record_files;
    /// How long a file system that hangs may delay the end by its removal.
    Duration record_timeout = std::chrono::seconds(2);
    /// For how long a step is tried to be started while Slurm's controller does not answer, and the
    /// pause between two tries.
    Duration step_patience = std::chrono::minutes(5);
    Duration step_pause = std::chrono::seconds(10);
    /// Between two words about what is waited for.
    Duration notice_interval = std::chrono::seconds(5);
  };
  static Means UsualMeans() {
    return {.record_files = [](EventLoop& loop) { return std::make_unique<FileThread>(loop); }};
  }

  /// `command`: this program and its arguments, for the nodes.
  SlurmLauncher(const LaunchPlan& plan, const Environment& environment,
                const SlurmAllocation& allocation, std::vector<std::string> command, Means means);
  ~SlurmLauncher();
  SlurmLauncher(const SlurmLauncher&) = delete;
  SlurmLauncher& operator=(const SlurmLauncher&) = delete;

  /// Runs until the job is over and the step has ended. Returns the exit code. Call once.
  int Run();

 private:
  absl::Status Start();
  void LeaveRecord();
  void RemoveRecord();
  // Events.
  void OnSignal(int signal);
  void OnForwardedSignal(int signal);
  void OnFinish(const JobOutcome& outcome);
  void OnCoordinatorStep();
  void ScheduleWaitNotice();
  void PrintWaitNotice();

  int Finish();

  // slurm_launcher_step.cc
  void StartStep();
  void OnStepLines(absl::string_view lines);
  void OnTasksEnded(const SrunTasksEnded& ended);
  void EndIfTooFewAreLeft();
  std::set<std::string> EndedAndGone() const;
  void OnStepEnd(int code);
  void OnStepNotStarted(const absl::Status& why);
  void OnStepWithoutAgents(int code);
  bool TryAgain(absl::string_view why);
  void EndStep();
  void StopStep();

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const SlurmAllocation& allocation_;
  const std::vector<std::string> nodes_;
  const std::vector<std::string> command_;
  const Means means_;
  const Clocks clocks_;

  EventLoop loop_;
  SignalWatcher signals_;
  JobOutput output_;

  HeadCoordinator head_;

  // Set by Start().
  std::unique_ptr<SlurmQueue> queue_;
  /// For those who let more nodes join; null if none may.
  std::unique_ptr<OwnJoinRecord> record_;
  /// SIGTERM makes srun kill the step at once.
  std::unique_ptr<ChildCommand> step_;

  /// Nodes whose agent has ended, as somebody says.
  std::set<std::string> ended_;
  /// A step that could not be started is tried again.
  EventLoop::TimerId step_timer_ = 0;
  MonoTime try_step_until_{};
  std::string told_trouble_;
  /// There is an srun here.
  bool has_found_srun_ = false;
  StepStop step_stop_;
  EventLoop::TimerId stop_timer_ = 0;
  std::string last_srun_error_;
  /// While no srun runs.
  std::optional<int> step_code_;
  std::optional<JobOutcome> outcome_;
  /// Why the job is over although the coordinator has not said so.
  std::string lost_reason_;
  int own_signal_ = 0;
  /// Until the queue is asked although the step has not ended; and until it must be known what the
  /// end of an agent, or of the step, means for the job.
  EventLoop::TimerId queue_timer_ = 0;
  EventLoop::TimerId lost_timer_ = 0;
};

}  // namespace fsdprun
