#pragma once

// Which node can hear the coordinator, and since when. A node that cannot hear cannot be told to
// stop its workers.

#include <map>

#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class Hearing {
 public:
  /// The node has a stream to the coordinator.
  void StreamOpened(Nanos at, int node);
  void StreamClosed(Nanos at, int node);
  /// Nothing reaches the node until `until`, because of its link.
  void CutOff(Nanos at, int node, Nanos until);
  /// What is sent to the node takes long until `until`.
  void SlowDown(int node, Nanos until);
  /// The node itself is stopped until `until`; or the coordinator is.
  void Pause(Nanos at, int node, Nanos until);
  void PauseCoordinator(Nanos at, Nanos until);
  /// All links are whole again.
  void Heal(Nanos at);

  /// Since when the node has been able to hear, as far as is known at `at`; kForever if it cannot.
  Nanos Since(Nanos at, int node) const;
  /// For a node that cannot hear: since when it has been running without orders;
  /// while it is stopped it does nothing at all. kForever if it hears, be it late, or is stopped.
  Nanos UnreachableSince(Nanos at, int node) const;
  /// When the last disturbance of the node's own ends.
  Nanos ReachableFrom(int node) const;

 private:
  struct Link {
    Nanos opened_at = kForever;
    Nanos cut_until = 0;
    Nanos slow_until = 0;
    Nanos paused_until = 0;
    Nanos unreachable_since = 0;
  };
  /// Hears late or in time.
  bool Hears(Nanos at, const Link& link) const;
  /// To be called before `link` gets worse.
  void NoteUnreachable(Nanos at, Link& link);

  std::map<int, Link> links_;
  Nanos coordinator_paused_until_ = 0;
};

}  // namespace fsdprun::sim
