#pragma once

#include "absl/status/status.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// Fills in how many nodes there are and how they find each other. Pure. Errors: OUT_OF_RANGE, as
/// Note [Usage errors and value errors].
absl::Status PlanRendezvous(const RawOptions& options, LaunchPlan* plan);

}  // namespace fsdprun
