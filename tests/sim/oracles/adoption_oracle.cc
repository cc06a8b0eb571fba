#include "tests/sim/oracles/adoption_oracle.h"

namespace fsdprun::sim {

void AdoptionOracle::StreamLossHeard(Nanos at, int node) { broken_at_.try_emplace(node, at); }

void AdoptionOracle::Admitted(int node) {
  if (broken_at_.erase(node) > 0) {
    CountQuestion();
  }
}

void AdoptionOracle::NodeLost(Nanos at, int node, const std::string& what) {
  if (dead_[node] > 0) {
    --dead_[node];
    return;
  }
  const auto broken = broken_at_.find(node);
  const bool is_for_its_stream = what.find("did not reconnect") != std::string::npos;
  if (!is_for_its_stream || broken == broken_at_.end()) {
    return;
  }
  CountQuestion();
  if (at < broken->second + lease_) {
    Complain("node " + std::to_string(node) + " is given up " +
             std::to_string((at - broken->second) / kMilli) +
             " ms after its stream broke, although another agent may come in its place: it " +
             what);
  }
}

}  // namespace fsdprun::sim
