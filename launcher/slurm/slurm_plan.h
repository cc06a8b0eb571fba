#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/slurm/allocation.h"

namespace fsdprun {

/// What a launcher in the shell of a job tells those that it starts on the nodes: the addresses of
/// its coordinator, separated by commas, and the job's run id.
inline constexpr char kEnvSlurmCoordinators[] = "FSDPRUN_SLURM_COORDINATORS";
inline constexpr char kEnvSlurmRunId[] = "FSDPRUN_SLURM_RUN_ID";
/// Set where they join from a job of their own.
inline constexpr char kEnvSlurmJoins[] = "FSDPRUN_SLURM_JOINS";

/// What a launcher is to its Slurm job.
enum class SlurmRole {
  /// As anywhere else.
  kNone,
  /// The coordinator runs here, in the job's shell, and one srun starts an agent on each node.
  kShell,
  /// One of several launchers that an srun has started.
  kTask,
};

struct SlurmPlace {
  SlurmRole role = SlurmRole::kNone;
  /// Of kShell and kTask.
  SlurmAllocation allocation;
};

/// Makes the plan what the allocation says where the command line leaves it open: how many nodes
/// there are, who hosts the coordinator at which port, under which run id. A command line that says
/// itself where the others are, or --nnodes=1, is taken at its word. Pure. Errors: OUT_OF_RANGE for
/// a command line that does not fit the allocation, and for variables that say nothing.
absl::StatusOr<SlurmPlace> FitToSlurm(const Environment& environment, LaunchPlan* plan);

/// Whether another task of the same srun says what this one has to say of the allocation.
bool IsToldByFirstTask(const Environment& environment);

/// The command that runs `words` once on each node of the allocation, as one step.
std::vector<std::string> SrunCommand(const SlurmAllocation& allocation, const LaunchPlan& plan,
                                     const std::vector<std::string>& words);

/// The environment for that command: without what srun would take for options that contradict it,
/// with `coordinators`, the run id and the token.
Environment SrunEnvironment(Environment environment, const std::string& coordinators,
                            const std::string& run_id, const std::string& token);

/// For workers: those of a launcher that has its place from Slurm do not see the variables that are
/// about its own task and step, nor the process management interfaces' (PMI, PMIx). What is about
/// the job stays; so does everything where the command line says itself who takes part.
Environment WorkerEnvironment(Environment environment, const LaunchPlan& plan);

/// Without all that is about a job of Slurm and a place in it: for what is to be in another one.
Environment WithoutSlurm(Environment environment);

}  // namespace fsdprun
