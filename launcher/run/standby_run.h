#pragma once

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// `fsdprun --standby`, which only launchers start: waits for the launcher's end, and goes on with
/// the job as its coordinator if that came too early; see Note [A standby]. `arguments`: the
/// launcher's own. Call on the main thread before other threads exist.
int RunStandby(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace fsdprun
