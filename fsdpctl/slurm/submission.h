#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdpctl/slurm/batch_file.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// A batch job as it is to be submitted.
struct Submission {
  /// kRun, kDryRun, or a text that is asked for instead.
  Request request = Request::kRun;
  BatchFile file;
  /// Of `sbatch`, for what is no line of a file.
  bool is_parsable = false;
};

/// For a command line whose workers run on other machines: whatever is asked of those may be there.
MachineFacts AnyMachine();

/// What `args`, which follow `fsdpctl slurm submit`, mean. `fsdprun`: how a batch file calls the
/// launcher. Pure. Errors: as Note [Usage errors and value errors].
absl::StatusOr<Submission> PlanSubmission(const std::vector<std::string>& args,
                                          const Environment& environment,
                                          const std::string& fsdprun);

}  // namespace fsdprun
