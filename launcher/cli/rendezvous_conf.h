#pragma once

#include "absl/status/status.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// `k=v,k=v` with blanks around either trimmed; the last of equal keys counts. Unknown keys are
/// ignored, as by torchrun. The backend must have been read. Pure. Errors: OUT_OF_RANGE.
absl::Status ReadRendezvousConf(const RawValue& value, LaunchPlan* plan);

}  // namespace fsdprun
