#pragma once

// An agent that is killed costs its node no place as long as another can come in its place: the
// node is not given up before its lease is over, and goes on with the generation that it held. Its
// questions are nodes that come again, and those that are given up.

#include <map>
#include <string>

#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class AdoptionOracle : public Oracle {
 public:
  /// `lease`: of a node whose agent is started again.
  explicit AdoptionOracle(Nanos lease) : lease_(lease) {}

  /// No other comes in its place: the node is another one when it comes again.
  void AgentDied(int node) { ++dead_[node]; }
  /// By the coordinator.
  void StreamLossHeard(Nanos at, int node);
  void Admitted(int node);
  /// The coordinator has given the node up, for the reason in `what`.
  void NodeLost(Nanos at, int node, const std::string& what);

 private:
  const Nanos lease_;
  /// Since when those have no stream that had one.
  std::map<int, Nanos> broken_at_;
  /// Agents that the coordinator has yet to give up.
  std::map<int, int> dead_;
};

}  // namespace fsdprun::sim
