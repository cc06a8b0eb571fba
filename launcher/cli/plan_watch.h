#pragma once

#include "absl/status/status.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// Fills in `plan->watch`. Pure. Errors: OUT_OF_RANGE.
absl::Status PlanWatch(const RawOptions& options, LaunchPlan* plan);

}  // namespace fsdprun
