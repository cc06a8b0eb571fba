#pragma once

#include "absl/status/status.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// What the options say of daemons: the nodes' (--agents, --hostfile) and, for fsdp-agent, of this
/// one (--daemon). Pure. Errors: INVALID_ARGUMENT and OUT_OF_RANGE.
absl::Status PlanAgents(const RawOptions& options, LaunchPlan* plan);

}  // namespace fsdprun
