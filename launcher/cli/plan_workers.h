#pragma once

#include "absl/status/status.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// Fills in what this node runs, how it is stopped, and what becomes of its output. Pure. Errors:
/// OUT_OF_RANGE, as Note [Usage errors and value errors].
absl::Status PlanWorkers(const RawOptions& options, const Environment& environment,
                         const MachineFacts& machine, LaunchPlan* plan);

/// Does nothing unless the plan divides the cores. For whoever has changed how many workers there
/// are. Pure.
void DivideCores(const MachineFacts& machine, LaunchPlan* plan);

}  // namespace fsdprun
