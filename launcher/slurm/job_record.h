#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// What the state of a job means for its launcher.
enum class SlurmPhase {
  kRunning,  ///< Also of a job that is suspended, or whose allocation is being changed.
  kEnding,   ///< It is to end, whatever the cause, or has ended.
  kUnknown,  ///< A state of a later Slurm.
};

/// What the controller says of a job, as far as it decides how a launcher ends.
struct SlurmJobRecord {
  /// As Slurm calls it: RUNNING; COMPLETING once the job is to end.
  std::string state;
  SlurmPhase phase = SlurmPhase::kUnknown;
  /// Its processes are stopped.
  bool is_suspended = false;
  std::string reason;
  /// False after sbatch --no-requeue, where the cluster says so, and for what is no batch file.
  bool may_be_requeued = false;
  /// How often it was requeued, also if the run that follows has not begun.
  int restarts = 0;
  std::optional<int64_t> start_time;
  /// When the time limit ends, or the job has ended; unset without a limit, and for a job that is
  /// requeued. In seconds since 1970, as the other times.
  std::optional<int64_t> end_time;
  /// When a preemption began, or its grace was over.
  std::optional<int64_t> preempt_time;

  /// The preemption has ended the job: somebody may also have cancelled it in the grace.
  bool IsEndOfPreemption() const;

  bool operator==(const SlurmJobRecord&) const = default;
};

/// The command that prints it, and the environment for that: times in seconds since 1970.
std::vector<std::string> ShowJobCommand(const std::string& job);
Environment ShowJobEnvironment(Environment environment);

/// Of what that command prints; of the first job, if it prints several. Pure. Errors:
/// INVALID_ARGUMENT with the text.
absl::StatusOr<SlurmJobRecord> ReadJobRecord(absl::string_view text);

}  // namespace fsdprun
