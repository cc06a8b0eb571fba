#include "tests/sim/oracles/stream_resets.h"

namespace fsdprun::sim {

void StreamResets::AgentStarted(Nanos at, int node, int place) {
  nodes_[node].place = place;
  nodes_[node].is_leaving = false;
  places_[place].insert(node);
  for (const int rival : places_[place]) {
    const std::optional<InjectedFault>& last = nodes_[rival].last;
    if (rival != node && last && at - last->at < kMadeGood) {
      ledger_.Add(*last);
    }
  }
}

void StreamResets::Reset(const InjectedFault& fault) {
  Node& node = nodes_[fault.node];
  const bool is_in_a_row = fault.at - node.before < kMadeGood;
  const bool has_rival = places_[node.place].size() > 1;
  if (is_in_a_row || has_rival || node.is_leaving) {
    ledger_.Add(fault);
  }
  node.before = node.last ? node.last->at : node.before;
  node.last = fault;
}

}  // namespace fsdprun::sim
