#pragma once

// The clocks by which a node, its coordinator and its keeper let go of one another.
//
// Note [Who lets go first]
// A process that is stopped for a while must cost nothing, and one that is gone must be replaced
// soon. So the coordinator may replace a silent node after the node lease, long before the node
// itself gives up; the worlds that may overlap meanwhile are kept apart by fencing, not by time
// (see docs/ARCHITECTURE.md, "Fencing"). An agent gives up its coordinator before its keeper gives
// up the agent: an agent that still runs ends its workers in order, and says why. Only then may
// another launcher host the run id of one that is silent: no worker of the old job runs any more.

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/mono_time.h"

namespace fsdprun {

/// Silence after which the coordinator may replace a node.
inline constexpr Duration kNodeLease = std::chrono::seconds(3);
inline constexpr Duration kShortestNodeLease = std::chrono::seconds(1);
inline constexpr std::chrono::hours kLongestNodeLease{24};

struct Clocks {
  Duration node_lease = kNodeLease;
  /// Silence after which a node is suspected: it is not made part of a new world.
  Duration suspect_after = kNodeLease / 2;
  Duration heartbeat_interval = kNodeLease / 6;
  /// How long an agent keeps its workers and redials while its coordinator is silent.
  Duration coordinator_grace = std::chrono::seconds(30);
  /// Silence of its agent after which a keeper ends the workers. End of file ends them at once,
  /// unless it waits for another agent.
  Duration keeper_lease = std::chrono::seconds(35);
  /// Silence of its host after which another launcher may take a run id, see ClaimStore.
  Duration claim_lease = std::chrono::seconds(40);
  /// Silence after which a transport gives up a connection. Never shorter than by default: a
  /// shorter lease is a matter of heartbeats.
  Duration stream_silence = kNodeLease;
};

/// The order in which they let go.
inline bool AreOrdered(const Clocks& clocks) {
  return clocks.heartbeat_interval < clocks.suspect_after &&
         clocks.suspect_after < clocks.node_lease && clocks.node_lease < clocks.coordinator_grace &&
         clocks.coordinator_grace < clocks.keeper_lease && clocks.keeper_lease < clocks.claim_lease;
}

/// All clocks of a job whose operator has chosen the node lease. See Note [Who lets go first].
inline Clocks ClocksFor(std::chrono::milliseconds chosen_lease) {
  constexpr Clocks kDefaults;
  constexpr Duration kMargin = std::chrono::seconds(10);
  const std::chrono::milliseconds longest(kLongestNodeLease);
  const Duration lease = std::max<Duration>(std::min(chosen_lease, longest), kShortestNodeLease);
  const Duration grace = std::max(kDefaults.coordinator_grace, lease + kMargin);
  const Clocks clocks{
      .node_lease = lease,
      .suspect_after = lease / 2,
      .heartbeat_interval = std::min(kDefaults.heartbeat_interval, lease / 6),
      .coordinator_grace = grace,
      .keeper_lease = grace + (kDefaults.keeper_lease - kDefaults.coordinator_grace),
      .claim_lease = grace + (kDefaults.claim_lease - kDefaults.coordinator_grace),
      .stream_silence = std::max(kDefaults.stream_silence, lease)};
  FSDPRUN_CHECK(AreOrdered(clocks), "see Note [Who lets go first]");
  return clocks;
}

/// A wake-up this late means that the process itself was stopped: what was due meanwhile says
/// nothing about the others.
inline constexpr Duration kStallTolerance = std::chrono::milliseconds(500);

/// A wake-up this late means that the machine is loaded, and what others have sent lies unread.
inline constexpr Duration kLateTolerance = std::chrono::milliseconds(50);

/// By how much the deadlines of others move because this process was late itself: by its delay, and
/// by as much again, within bounds, in which it reads what has come meanwhile. The second is
/// granted once until a wake-up is in time again, so that a machine that is always late still
/// decides at last.
class Lateness {
 public:
  struct Found {
    Duration late{};
    Duration forgiven{};
  };

  /// At an event. `promised`: when the process wanted to be woken next; MonoTime::max(): never.
  Found At(MonoTime promised, MonoTime now) {
    if (now < promised) {
      return {};
    }
    const Duration late = now - std::max(promised, forgiven_at_);
    if (late < kLateTolerance) {
      was_late_ = was_late_ && promised < forgiven_at_;
      return {};
    }
    forgiven_at_ = now;
    const Duration for_reading = std::min(late, kStallTolerance);
    return {late, std::exchange(was_late_, true) ? late : late + for_reading};
  }

 private:
  bool was_late_ = false;
  /// What came before is forgiven already.
  MonoTime forgiven_at_{};
};

}  // namespace fsdprun
