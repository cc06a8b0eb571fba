#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/run/child_command.h"
#include "launcher/run/program_lookup.h"
#include "launcher/run/run_history_file.h"
#include "launcher/slurm/job_record.h"
#include "launcher/slurm/requeue.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// A job's life in Slurm's queue: asks the controller, by scontrol, when the time limit ends and
/// why the job was stopped, and requeues the job. What follows from the answers is decided in
/// launcher/slurm/requeue.h. One per job, where its coordinator is. Thread: the main thread, which
/// also runs the loop.
class SlurmQueue {
 public:
  struct Hooks {
    /// The job is to end now, as if this process had got that signal.
    std::function<void(int signal)> stop;
    /// That has begun, whoever has asked for it.
    std::function<bool()> is_stopping;
    std::function<void(const std::string& text)> print;
  };

  /// What it works with, and how long that may take.
  struct Means {
    /// Owns what it uses, see ProgramLookup.
    std::function<ProgramLookup::Found()> find_scontrol;
    /// Serves the history alone.
    std::unique_ptr<FileThread> files;
    /// Short, because a requeue has little time itself.
    Duration files_timeout = std::chrono::seconds(2);
    /// A scontrol that has not ended by then is stuck; its own timeouts are shorter.
    Duration call_timeout = std::chrono::seconds(45);
    /// For one that was killed.
    Duration death_timeout = std::chrono::seconds(2);
    /// How long nodes may wait in vain for others that were stopped, too: JobSpec::signal_spread.
    Duration doubt_timeout = std::chrono::seconds(5);
  };
  static Means UsualMeans(EventLoop& loop, const Environment& environment);

  /// `plan` has a scheduler's job; it must outlive this. Begins to look after the time limit.
  SlurmQueue(EventLoop& loop, const LaunchPlan& plan, const Environment& environment, Hooks hooks,
             Means means);
  ~SlurmQueue();
  SlurmQueue(const SlurmQueue&) = delete;
  SlurmQueue& operator=(const SlurmQueue&) = delete;

  /// A signal that ends the job has come to this process. One that comes after the job's outcome
  /// has no part in it, unless the workers have steps left: then Slurm's has come to them first.
  void NoteSignal(int signal);
  /// One that is passed on to the workers; before the outcome.
  void NotePassedSignal(int signal);
  /// The coordinator has taken a step.
  void OnStep(const JobMachine& job);
  /// One agent was sent a signal that may be for all: it is known soon.
  bool is_in_doubt() const { return MonoNow() < in_doubt_until_; }

  /// Requeues the job if its end, or that it has none (`outcome` is unset), asks for it. Begins at
  /// once, while the loop runs for others. The first call counts.
  void BeginEnd(const std::optional<JobOutcome>& outcome, const JobMachine& job);
  /// The same, and runs the loop, which must have been stopped, until that is done, or cannot be:
  /// Slurm's time to end the job included, if it was requeued.
  void EndRun(const std::optional<JobOutcome>& outcome, const JobMachine& job);

 private:
  // slurm_queue.cc: while the job runs.
  void LookAfter(Duration pause);
  void Look();
  void OnLook(const absl::StatusOr<SlurmJobRecord>& record);
  void PlanLook(std::optional<Duration> pause);
  void UseLook(const SlurmJobRecord& record);
  void TellOfLimit(const SlurmJobRecord& record, int64_t now, int64_t seconds);
  bool EndsForAll(const SlurmJobRecord& record) const;
  void OnLimit(const SlurmJobRecord& record, int64_t now);
  int64_t Now(const SlurmJobRecord& record) const;

  // The same file: scontrol.
  void Ask(std::function<void(const absl::StatusOr<SlurmJobRecord>&)> use);
  void Call(const std::vector<std::string>& command, std::function<void(const absl::Status&)> done);
  void StartCall(const ProgramLookup::Found& scontrol, const std::vector<std::string>& command,
                 const std::function<void(const absl::Status&)>& done);
  void OnNotStarted(const absl::Status& why, const std::function<void(const absl::Status&)>& done);
  void OnLate(const std::vector<std::string>& command,
              const std::function<void(const absl::Status&)>& done);
  void OnCallEnd(const std::vector<std::string>& command, int code,
                 const std::function<void(const absl::Status&)>& done);
  void Answer(const std::function<void(const absl::Status&)>& done, const absl::Status& status);

  // slurm_queue_end.cc: once it is over.
  RunEnd EndOf(const std::optional<JobOutcome>& outcome, const JobMachine& job) const;
  Duration TimeToTry() const;
  void AskWhy();
  void OnWhy(const absl::StatusOr<SlurmJobRecord>& record);
  void Decide(const SlurmJobRecord& record, const RunsInARow& runs);
  void Requeue();
  void OnRequeued(const absl::Status& status);
  void AwaitSlurm();
  void TryAgain(const absl::Status& why);
  void GiveUp(absl::string_view why);
  void FinishEnd();

  // Constant after construction.
  EventLoop& loop_;
  const LaunchPlan& plan_;
  const SchedulerJob& job_;
  const Environment environment_;
  const LimitMargin margin_;
  const Hooks hooks_;
  const Duration call_timeout_;
  const Duration death_timeout_;
  const Duration doubt_timeout_;
  const MonoTime began_at_ = MonoNow();

  // Owned by the loop thread: what is to be done next, at most one thing.
  EventLoop::TimerId timer_ = 0;
  EventLoop::TimerId answer_ = 0;
  EventLoop::TimerId call_limit_ = 0;
  /// Where scontrol is; calls wait for it.
  ProgramLookup scontrol_;
  /// The scontrol that runs, or has run last, and what it has said.
  std::unique_ptr<ChildCommand> command_;
  bool is_late_ = false;
  std::string said_;

  // What has happened in the run.
  /// The first of each kind; 0: none.
  int signal_ = 0;
  int passed_signal_ = 0;
  /// After the outcome; not an operator's impatience.
  int late_signal_ = 0;
  /// One that is no notice: the job may have been cancelled.
  bool has_other_signal_ = false;
  bool has_outcome_ = false;
  int64_t first_step_ = -1;
  uint64_t doubtful_signals_ = 0;
  /// Somebody's signal was for one node or for all, which scontrol is asked until then.
  MonoTime in_doubt_until_{};
  /// One look at a time: agents tell of a signal one after the other.
  bool is_looking_ = false;
  MonoTime looked_at_{};
  /// That it requeues the job by itself.
  bool has_told_ = false;
  bool is_before_limit_ = false;
  bool has_warned_of_margin_ = false;
  /// When the time limit ends, as it was said last.
  std::optional<MonoTime> limit_;

  // The end.
  std::optional<RunEnd> end_;
  RunHistoryFile history_;
  std::optional<RunsInARow> runs_;
  MonoTime try_until_{};
  Duration pause_{};
  bool has_told_of_trouble_ = false;
  /// What was decided last, as it was told.
  std::string decided_;
  /// scontrol requeue was called: Slurm ends this job by signals, maybe before that has ended. It
  /// does so already if the job was ending then.
  bool has_asked_ = false;
  bool slurm_ends_it_ = false;
  bool awaits_slurm_ = false;
  /// There is another run.
  bool goes_on_ = false;
  bool is_over_ = false;
  /// The loop runs for the end alone.
  bool is_awaited_ = false;
};

}  // namespace fsdprun
