#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/command_line.h"

namespace fsdprun {

/// The token by which a launcher's daemons know it: the operator's, else the user's secret. Errors:
/// as TokenOf(); INVALID_ARGUMENT if there is none, with what to do.
absl::StatusOr<std::string> DaemonToken(const LaunchPlan& plan, const Environment& environment);

/// What every session of a job is told, with a fresh id. `arguments`: of this program, without its
/// name.
v1::SessionSpec OrderOf(const LaunchPlan& plan, const Environment& environment,
                        const std::vector<std::string>& arguments);

}  // namespace fsdprun
