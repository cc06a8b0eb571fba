#pragma once

// Which resets of a node's stream can have consequences; those go into the ledger. One reset is
// made good long before the grace for coming back ends. But several in a row may use it up;
// meanwhile another agent that asks for the same rank takes it over, be it there already or only
// just started; and an agent that leaves does not come back to repeat an AgentLeft that is lost.

#include <map>
#include <optional>
#include <set>

#include "tests/sim/oracles/fault_ledger.h"

namespace fsdprun::sim {

class StreamResets {
 public:
  /// Within this time a reset is made good, if no other one follows.
  static constexpr Nanos kMadeGood = 500 * kMilli;

  /// `ledger` outlives this.
  explicit StreamResets(FaultLedger& ledger) : ledger_(ledger) {}

  /// Agents that ask for the same rank share a place.
  void AgentStarted(Nanos at, int node, int place);
  void AgentLeaves(int node) { nodes_[node].is_leaving = true; }
  /// What is in flight on the stream of `fault.node` is lost, and the stream with it.
  void Reset(const InjectedFault& fault);

 private:
  struct Node {
    int place = 0;
    bool is_leaving = false;
    std::optional<InjectedFault> last;
    /// The reset before the last one.
    Nanos before = -kForever;
  };

  FaultLedger& ledger_;
  std::map<int, Node> nodes_;
  /// The nodes at each place.
  std::map<int, std::set<int>> places_;
};

}  // namespace fsdprun::sim
