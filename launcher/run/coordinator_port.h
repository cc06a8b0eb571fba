#pragma once

#include <memory>
#include <string>

#include "base/event_loop.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/coordinator_host.h"
#include "launcher/run/health_port.h"

namespace fsdprun {

/// The health port of a coordinator without an agent beside it; null as of OpenHealthPort(). `host`
/// must outlive it. `job` is the run id.
std::unique_ptr<HealthPort> OpenCoordinatorPort(EventLoop& loop, const Environment& environment,
                                                const std::string& job, CoordinatorHost& host);

}  // namespace fsdprun
