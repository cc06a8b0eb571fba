#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/slurm/job_record.h"
#include "proto/cluster/types.h"

namespace fsdprun {

// What a signal, the end of the time limit and a preemption mean for a job of Slurm: whether there
// is another run of it. Pure.

/// A signal by which a scheduler says that the end is near (#SBATCH --signal); nobody's default.
bool IsNotice(int signal);

/// False for a signal that only says again what an earlier one has said. Slurm sends SIGTERM to a
/// step twice at the end of its time, also after a notice, and srun passes on what it gets. Taken
/// for the impatience of an operator, it would end the workers' grace; Slurm has one of its own.
bool IsNews(int earlier_signal, int signal);

/// Why a job was told to end.
enum class StopCause {
  kNotice,     ///< The signal itself asks for another run.
  kTimeLimit,  ///< It has ended, or ends soon.
  kPreempted,
  kRequeued,  ///< Another run is on its way already.
  kCancelled,
  kSignalled,  ///< A signal that means no more than the end of this job.
  kUnknown,    ///< The job is in a state that this program does not know.
};

/// What has ended a run, seen by its coordinator.
struct RunEnd {
  enum class Kind {
    kSucceeded,  ///< All workers exited with 0, of themselves or at a signal that they had.
    kStopped,    ///< They were stopped by a signal to this job.
    kFailed,
  };
  Kind kind = Kind::kFailed;
  /// The signal that has ended the job or was passed on to its workers; 0: none.
  int signal = 0;
  /// It was only passed on to the workers: whether it has ended them is their affair.
  bool was_passed_on = false;
  /// The launcher has stopped it before the time limit did.
  bool is_before_limit = false;
  /// The workers' first and latest record of progress in this run; negative without any.
  int64_t first_step = -1;
  int64_t step = -1;
  int64_t total = -1;
  WorkerEnds workers;
  /// See IsShort().
  bool is_short = false;
};

/// All workers ended with 0: whatever the program saves when it is stopped, it has saved.
bool HasSaved(const RunEnd& end);

/// There is a sign that another run would get further than this one did: a save, or steps.
bool HasGained(const RunEnd& end);

/// Whether there is something to decide, for which the controller has to be asked.
bool MayBeUnfinished(RequeueMode mode, const RunEnd& end);

/// Whether a program that saves from time to time can hardly have saved in a run that ends `now`:
/// it has had little time, also measured by its limit. Never said of a run that was preempted,
/// which is not the program's doing; what its steps tell counts all the same.
bool IsShort(const SlurmJobRecord& record, int64_t now);

StopCause CauseOf(const RunEnd& end, const SlurmJobRecord& record, int restarts);

/// So many runs in a row that have brought a job no further are its last ones, with
/// RequeueMode::kAuto. Not after a preemption, after which Slurm would have requeued the job by
/// itself.
inline constexpr int kMostFruitlessRuns = 3;

/// What is known of the runs of a job in a row, the latest counted.
struct RunsInARow {
  /// So many have brought the job no further, as far as that can be told: RememberRun().
  int fruitless = 0;
  /// So many have given no sign of progress, however long they were: no steps, and no save.
  int silent = 0;

  bool operator==(const RunsInARow&) const = default;
};

struct RequeueDecision {
  bool requeues = false;
  /// For the operator: why, or why not and what to do; may be empty.
  std::string text;
};

/// `restarts`: of the job when this run began.
RequeueDecision DecideRequeue(RequeueMode mode, const RunEnd& end, const SlurmJobRecord& record,
                              int restarts, const RunsInARow& runs);

/// Whether a notice is obeyed although the controller does not say how the job is. `other_signal`:
/// one that is no notice has come as well, as in a cancellation.
bool RequeuesUnasked(RequeueMode mode, const RunEnd& end, bool other_signal);

/// What scontrol requeue says when it would say so again.
bool IsRefusal(absl::string_view message);

/// How long before the end of a time limit the workers are to be stopped.
struct LimitMargin {
  /// As it was given.
  std::optional<int64_t> seconds;
  /// Of the workers, to save.
  int64_t grace_s = 0;
};

/// How long before the end of the time limit of `record` that is: the grace and what the end of the
/// step and the controller's answer may take, at most half of the limit, unless it was given.
int64_t MarginOf(const LimitMargin& margin, const SlurmJobRecord& record);

/// Empty, or that the workers may be killed before their grace is over, and what to do.
std::string MarginWarning(const LimitMargin& margin, const SlurmJobRecord& record);

/// Seconds until the time limit has to be looked at again; 0: the job is to be stopped now, so that
/// its workers can save; unset: never.
std::optional<int64_t> SecondsToLimit(RequeueMode mode, const LimitMargin& margin,
                                      const SlurmJobRecord& record, int64_t now, bool has_progress);

/// The controller's clock, in seconds since 1970, as late as it can be: this node's own may be
/// behind. `uptime_s`: of this launcher, which began after the job did.
int64_t ControllerTime(const SlurmJobRecord& record, int64_t node_time, int64_t uptime_s);

}  // namespace fsdprun
