#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdpctl/slurm/submission.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/raw_options.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/join_record.h"
#include "launcher/slurm/queue_listing.h"

namespace fsdprun {

// What a command line of `fsdpctl slurm grow` means. Pure. Errors: as Note [Usage errors and value
// errors].

/// What it was told, before it is known what runs in the job.
struct GrowthOptions {
  Request request = Request::kRun;
  std::string job;
  RawOptions options;
};

/// `args`: what follows `fsdpctl slurm grow`.
absl::StatusOr<GrowthOptions> ReadGrowth(const std::vector<std::string>& args,
                                         const Environment& environment);

/// A record may have outlived its launcher. Errors: OUT_OF_RANGE with the state.
absl::Status CheckIsRunning(const std::string& job, const std::vector<ListedJob>& queue);

/// A job whose nodes join the recorded one: others of the same kind, for as long. `fsdpctl`: how a
/// batch file calls this program.
absl::StatusOr<Submission> PlanGrowth(const GrowthOptions& growth, const SlurmJoinRecord& record,
                                      const std::vector<ListedJob>& queue,
                                      const std::string& fsdpctl);

/// The srun by which the nodes of `allocation`, those of the other job, join the recorded one.
absl::StatusOr<std::vector<std::string>> JoinCommand(const SlurmAllocation& allocation,
                                                     const SlurmJoinRecord& record);

}  // namespace fsdprun
