#pragma once

#include <optional>

#include "agent/node/node_machine.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// The failure of this node's workers as the end of the job, for a node that has lost its
/// coordinator and cannot be told the job's own; nothing if none of them failed before they were
/// stopped.
std::optional<JobOutcome> OutcomeOfOwnFailures(const NodeMachine& machine);

}  // namespace fsdprun
