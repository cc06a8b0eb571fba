#pragma once

#include "base/mono_time.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/coordinator/world.h"
#include "launcher/watch/vitals_table.h"

namespace fsdprun {

/// Adds the workers of the world to the state of its job: which have ended, and what is known of
/// each; of another generation nothing is. Pure. O(workers).
void DescribeWorkers(const World& world, const VitalsTable& vitals, MonoTime now,
                     v1::JobStatus* status);

}  // namespace fsdprun
