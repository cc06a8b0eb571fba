#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

// What Slurm's variables say of the job that a process belongs to, of 22.05 and later.

/// Nodes that were granted together: all of a job, or one component of a heterogeneous one.
struct SlurmGroup {
  uint64_t job_id = 0;
  std::vector<std::string> nodes;

  bool operator==(const SlurmGroup&) const = default;
};

/// One of the processes that an srun has started.
struct SlurmTask {
  uint32_t step_id = 0;
  /// Of the step, in its order.
  std::vector<std::string> nodes;
  std::vector<int> tasks_per_node;
  int tasks = 1;
  /// SLURM_PROCID, SLURM_NODEID (an index of `nodes`) and SLURM_LOCALID.
  int rank = 0;
  int node = 0;
  int local_rank = 0;
  /// Where the srun runs, as it knows itself; empty if unknown.
  std::string launch_address;

  bool operator==(const SlurmTask&) const = default;
};

struct SlurmAllocation {
  uint64_t job_id = 0;
  /// Of an array; for people the job is `ARRAY_TASK`.
  std::optional<uint64_t> array_job_id;
  std::optional<uint64_t> array_task_id;
  std::string cluster;
  /// Never empty; several for a heterogeneous job. A task knows its step's nodes only.
  std::vector<SlurmGroup> groups;
  /// The node that this process is on, which need not resolve and need not be gethostname(); empty
  /// outside of the allocation, as in salloc's shell on a login node.
  std::string node_name;
  /// How often the job was requeued.
  int restart_count = 0;
  /// As asked for by --cpus-per-task; srun does not take it over from sbatch in 22.05 to 23.02.
  std::optional<int> cpus_per_task;
  /// The end of the time limit in seconds since 1970; Slurm 23.02 and later say it.
  std::optional<int64_t> end_time;
  /// Unset: this is the shell of the job, a batch file's or salloc's.
  std::optional<SlurmTask> task;

  /// Of all groups, in order.
  std::vector<std::string> Nodes() const;
  /// `12`, or `12_3` for a member of an array.
  std::string JobName() const;

  bool operator==(const SlurmAllocation&) const = default;
};

/// Where this process is; nothing outside of Slurm. The shell of salloc's interactive step is a
/// shell, not a task. Pure. Errors: INVALID_ARGUMENT with the variable, its value and what belongs
/// there.
//
// A limit: who calls sbatch in a task hands that task's variables down to the new job, whose shell
// then looks like a task.
absl::StatusOr<std::optional<SlurmAllocation>> ReadAllocation(const Environment& environment);

}  // namespace fsdprun
