#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/slurm/requeue.h"

namespace fsdprun {

/// What is remembered of a run of a job, for the runs after it: whether they get any further. Slurm
/// itself keeps no more of a run than that there was one.
struct PastRun {
  /// Of the job when the run began.
  int restarts = 0;
  /// See RunEnd.
  int64_t first_step = -1;
  bool has_saved = false;
  RunsInARow runs;

  bool operator==(const PastRun&) const = default;
};

/// What there is to be remembered of a run that ends so. `before`: what is remembered of an earlier
/// one. Pure.
//
// Note [Runs that bring a job no further]
// How far the workers came in this run is worth nothing if it was not saved, and whether it was is
// seen in the next run: where that begins. A run that begins no further than the one before has got
// nothing from it, and brings the job further only if it saves at last. Of workers that never
// report a step only their ends are seen: if these are no save, the run may have saved from time to
// time all the same, as a program does that has no handler for a signal. So it counts only if it
// was too short for that (IsShort), as those of a job that is stopped again and again while it
// still loads; a longer one begins the count anew. So there is no bound for such a program, which
// may be right for weeks; how many of its runs have given no sign of progress is told. Of a run
// that begins further, or is the first, steps or a save are taken for the good sign that they
// mostly are.
PastRun RememberRun(const std::optional<PastRun>& before, const RunEnd& end, int restarts);

/// The same if nothing can be remembered: then every run counts that has begun.
RunsInARow RunsOfUnknown(const RunEnd& end, int restarts);

/// The file's name: `CLUSTER.JOB.PROGRAM`, in a step `CLUSTER.JOB.STEP.PROGRAM`, of a launcher that
/// is alone there `CLUSTER.JOB.STEP.TASK.PROGRAM`. `plan` has a scheduler's job. Pure.
//
// Note [Launchers of one job]
// A batch file may have several launchers, one after the other or at once, and what one remembers
// must neither be removed by another nor be taken for its own. They are told apart by what is the
// same in all runs of the job: the step, because a batch file begins its steps in one order (if it
// does not, as with several srun at once, it is as with launchers that are the same), the last part
// of the program's name, and the task if each task is a job of its own (--standalone). Not by the
// program's arguments: a folder that is named after the time, where no run finds what the one
// before has saved, is what the bound is there for. Nor by the run id, which has the number of the
// run. Launchers that are the same in all of these, as those of a sweep in the batch shell, have
// one file: the last one that is stopped in a run writes it. Then one may begin no further than
// another had begun, which adds one to the count, and one that gets on begins the count anew; so
// they are refused only after three such meetings in a row. No launcher removes a file that it has
// not written in this run.
std::string RunHistoryName(const LaunchPlan& plan, const Environment& environment);

/// One line. Errors of reading: INVALID_ARGUMENT.
std::string EncodePastRun(const PastRun& run);
absl::StatusOr<PastRun> DecodePastRun(absl::string_view text);

}  // namespace fsdprun
