#pragma once

// Two worlds may overlap only where it is harmless.
//
// Note [Harmless overlap]
// The coordinator replaces a node that it cannot reach, and cannot wait for what runs there. So a
// process of generation g may run, and even be started, while a newer generation runs on other
// nodes, but only
// 1. while its node cannot hear the coordinator (cut off, stopped, or its stream broken), but only
//    as long as a node keeps workers without a coordinator; and for kStopsWithin after it hears
//    again: to reconnect, to be told, to be killed; or
// 2. for kOrphansEndWithin after its agent died: the keeper ends it; or
// 3. while the kernel does not let it die (uninterruptible sleep, with SIGKILL pending): such a
//    process executes no instruction of its program any more.
// What both could touch is fenced by generation, see FenceOracle. On one node two generations never
// overlap, except with a process as in 3 that an earlier agent had to leave behind: the same agent
// starts nothing beside it.

#include <cstdint>
#include <map>
#include <string>

#include "proto/cluster/types.h"
#include "tests/sim/oracles/hearing.h"

namespace fsdprun::sim {

struct ProcessSighting {
  int64_t pid = 0;
  int node = 0;
  /// Which agent of the node started it; counted over the whole cluster.
  uint32_t life = 0;
  Generation generation;
};

class OverlapOracle : public Oracle {
 public:
  static constexpr Nanos kStopsWithin = 2 * kSecond;
  static constexpr Nanos kOrphansEndWithin = 100 * kMilli;

  /// `alone_bound`: how long a node keeps workers without a word of its coordinator, and what it
  /// then takes to end them. `hearing` outlives the oracle and is told of a change after
  /// the oracle.
  OverlapOracle(const Hearing& hearing, Nanos alone_bound)
      : hearing_(hearing), alone_bound_(alone_bound) {}

  void ProcessStarted(Nanos at, const ProcessSighting& process);
  void ProcessEnded(Nanos at, int64_t pid);
  /// From now on SIGKILL has no effect on the process; from now on it has again.
  void BecameUnkillable(int64_t pid);
  void BecameKillable(int64_t pid);
  void AgentDied(Nanos at, uint32_t life);
  /// The node's hearing is about to change.
  void HearingChanges(Nanos at, int node);
  void HearingChangesEverywhere(Nanos at);
  /// From now on every process is one of an older generation.
  void JobEnded(Nanos at);

 private:
  struct Running {
    ProcessSighting sighting;
    bool unkillable = false;
    Nanos agent_died_at = kForever;
    /// Since when a newer generation runs elsewhere.
    Nanos overlaps_since = kForever;
  };

  void OverlapAllOlderThan(Nanos at, Generation g);
  void CheckSameNode(const Running& old, const ProcessSighting& started);
  void CheckHarmless(Nanos at, const Running& running);

  const Hearing& hearing_;
  const Nanos alone_bound_;
  std::map<int64_t, Running> running_;
  /// How many processes run of each generation; with one generation there is nothing to compare.
  std::map<Generation, int> count_;
  Generation newest_;
};

}  // namespace fsdprun::sim
