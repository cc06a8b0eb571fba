#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/rpc/tls.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// What the plan's files are for; null without any, and for a job of one node, which nobody joins:
/// there they are only checked. Errors: as LoadTls().
absl::StatusOr<std::shared_ptr<const Tls>> MakeTls(const LaunchPlan& plan);

/// For a launcher that hosts the coordinator. Errors: INVALID_ARGUMENT if it cannot show a
/// certificate and is to.
absl::Status CheckCanServe(const Tls* tls);

}  // namespace fsdprun
