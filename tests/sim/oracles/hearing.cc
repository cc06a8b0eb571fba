#include "tests/sim/oracles/hearing.h"

#include <algorithm>

namespace fsdprun::sim {

void Hearing::StreamOpened(Nanos at, int node) { ears_[node].opened_at = at; }

void Hearing::StreamClosed(int node) { ears_[node].opened_at = kForever; }

void Hearing::CutOff(int node, Nanos until) {
  ears_[node].cut_until = std::max(ears_[node].cut_until, until);
}

void Hearing::Pause(int node, Nanos until) {
  ears_[node].paused_until = std::max(ears_[node].paused_until, until);
}

void Hearing::PauseCoordinator(Nanos until) {
  coordinator_paused_until_ = std::max(coordinator_paused_until_, until);
}

void Hearing::Heal(Nanos at) {
  for (auto& [node, ear] : ears_) {
    ear.cut_until = std::min(ear.cut_until, at);
  }
}

Nanos Hearing::Since(Nanos at, int node) const {
  const auto ear = ears_.find(node);
  if (ear == ears_.end()) {
    return kForever;
  }
  const Nanos since = std::max({ear->second.opened_at, ear->second.cut_until,
                                ear->second.paused_until, coordinator_paused_until_});
  return since > at ? kForever : since;
}

Nanos Hearing::ReachableFrom(int node) const {
  const auto ear = ears_.find(node);
  return ear == ears_.end() ? 0 : std::max(ear->second.cut_until, ear->second.paused_until);
}

}  // namespace fsdprun::sim
