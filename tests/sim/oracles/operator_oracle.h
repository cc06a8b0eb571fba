#pragma once

// A node that an operator drains is in no later world, unless another agent comes there; it is told
// to go, and goes; and no other agent is told so. That nothing is charged for it is for
// OutcomeOracle to say, and that a world has its other nodes, and as many as an operator allows,
// for RecoveryOracle. Its questions are worlds that are formed while there are drained agents, and
// agents that had to be gone.

#include <set>

#include "proto/cluster/messages.h"
#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class OperatorOracle : public Oracle {
 public:
  /// The coordinator is about to hear that the node of this agent is drained.
  void DrainOrdered(Incarnation agent) { drained_.insert(agent); }
  void WorldOrdered(Incarnation agent, Generation g);
  void Released(Incarnation agent, const ReleaseAgent& release);
  /// By now who was drained is gone; this agent is there.
  void IsThere(Incarnation agent);

 private:
  std::set<Incarnation> drained_;
  Generation ordered_;
};

}  // namespace fsdprun::sim
