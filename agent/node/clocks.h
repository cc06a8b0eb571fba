#pragma once

// The clocks by which a node, its coordinator and its keeper let go of one another.
//
// Note [Who lets go first]
// A process that is stopped for a while must cost nothing, and one that is gone must be replaced
// soon. So the coordinator may replace a silent node after the node lease, long before the node
// itself gives up; the worlds that may overlap meanwhile are kept apart by fencing, not by time
// (see docs/ARCHITECTURE.md, "Fencing"). An agent gives up its coordinator before its keeper gives
// up the agent: an agent that still runs ends its workers in order, and says why.

#include <chrono>

#include "base/mono_time.h"

namespace fsdprun {

/// Silence after which the coordinator may replace a node.
inline constexpr Duration kNodeLease = std::chrono::seconds(3);
/// How long an agent keeps its workers and redials while its coordinator is silent.
inline constexpr Duration kCoordinatorGrace = std::chrono::seconds(30);
/// Silence of its agent after which a keeper ends the workers. End of file ends them at once.
inline constexpr Duration kKeeperLease = std::chrono::seconds(35);
static_assert(kNodeLease < kCoordinatorGrace && kCoordinatorGrace < kKeeperLease);

/// A wake-up this late means that the process itself was stopped: what was due meanwhile says
/// nothing about the others.
inline constexpr Duration kStallTolerance = std::chrono::milliseconds(500);

}  // namespace fsdprun
