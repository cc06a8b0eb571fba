#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdpctl/slurm/batch_file.h"
#include "fsdpctl/slurm/slurm_values.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

// What the commands that write a batch file have in common: their options, and the lines for sbatch
// that follow from them. Pure. Errors: as Note [Usage errors and value errors].

Request RequestOf(const RawOptions& options);
/// Whether a text is asked for instead of a job.
bool IsForReader(Request request);

/// With sbatch's variables, which are defaults of its options.
RawOptions WithVariables(CliProgram program, RawOptions given, const Environment& environment);

/// What sbatch would say of the values, before the job is made.
absl::Status CheckSbatchValues(CliProgram program, const RawOptions& options);

std::string TextOr(const RawOptions& options, const char* name, const std::string& otherwise);

/// The lines that every job of ours has, then those that were asked for, as they are.
absl::StatusOr<std::vector<Directive>> MakeDirectives(CliProgram program, const RawOptions& options,
                                                      const std::string& name,
                                                      const NodeRange& nodes);

/// The lines that let a job be interrupted. Errors: OUT_OF_RANGE also for a notice before the time
/// limit that could come when the job has hardly begun.
absl::StatusOr<std::vector<Directive>> QueueDirectives(const RawOptions& options,
                                                       const LaunchPlan& plan);

}  // namespace fsdprun
