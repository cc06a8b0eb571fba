#pragma once

#include "launcher/cli/launch_plan.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/run/job_watch.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {

/// What the command line says of the job; `launch_id` is the host's. Pure.
JobSpec MakeJobSpec(const LaunchPlan& plan, const Clocks& clocks);

/// How the job's workers are watched.
JobWatch::Options MakeWatchOptions(const LaunchPlan& plan);

/// The job is to end, or has. Pure.
bool IsStopping(const JobMachine& job);

}  // namespace fsdprun
