#pragma once

#include "launcher/cli/launch_plan.h"
#include "launcher/coordinator/job_machine.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {

/// What the command line says of the job; `launch_id` is the host's. Pure.
JobSpec MakeJobSpec(const LaunchPlan& plan, const Clocks& clocks);

/// The job is to end, or has. Pure.
bool IsStopping(const JobMachine& job);

}  // namespace fsdprun
