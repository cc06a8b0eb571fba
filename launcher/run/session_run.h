#pragma once

#include <string>

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// `fsdp-agent --session FOLDER`, which only daemons start: runs a node's part of a job to its end,
/// as the spec in the daemon's folder says, and leaves its exit code there. See Note [What is in a
/// daemon's folder]. Call on the main thread before other threads exist.
int RunSession(const std::string& folder, const Environment& own_environment);

}  // namespace fsdprun
