#include "tests/sim/oracles/hearing.h"

#include <algorithm>

namespace fsdprun::sim {

void Hearing::StreamOpened(Nanos at, int node) { ears_[node].opened_at = at; }

void Hearing::StreamClosed(Nanos at, int node) {
  NoteDeafness(at, ears_[node]);
  ears_[node].opened_at = kForever;
}

void Hearing::SlowDown(int node, Nanos until) {
  ears_[node].slow_until = std::max(ears_[node].slow_until, until);
}

void Hearing::CutOff(Nanos at, int node, Nanos until) {
  NoteDeafness(at, ears_[node]);
  ears_[node].cut_until = std::max(ears_[node].cut_until, until);
}

void Hearing::Pause(Nanos at, int node, Nanos until) {
  NoteDeafness(at, ears_[node]);
  ears_[node].paused_until = std::max(ears_[node].paused_until, until);
}

void Hearing::PauseCoordinator(Nanos at, Nanos until) {
  for (auto& [node, ear] : ears_) {
    NoteDeafness(at, ear);
  }
  coordinator_paused_until_ = std::max(coordinator_paused_until_, until);
}

void Hearing::Heal(Nanos at) {
  for (auto& [node, ear] : ears_) {
    ear.cut_until = std::min(ear.cut_until, at);
    ear.slow_until = std::min(ear.slow_until, at);
  }
}

Nanos Hearing::Since(Nanos at, int node) const {
  const auto ear = ears_.find(node);
  if (ear == ears_.end()) {
    return kForever;
  }
  const Nanos since =
      std::max({ear->second.opened_at, ear->second.cut_until, ear->second.slow_until,
                ear->second.paused_until, coordinator_paused_until_});
  return since > at ? kForever : since;
}

bool Hearing::Hears(Nanos at, const Ear& ear) const {
  return std::max({ear.opened_at, ear.cut_until, ear.paused_until, coordinator_paused_until_}) <=
         at;
}

void Hearing::NoteDeafness(Nanos at, Ear& ear) {
  if (Hears(at, ear)) {
    ear.deaf_since = at;
  }
}

Nanos Hearing::DeafSince(Nanos at, int node) const {
  const auto ear = ears_.find(node);
  if (ear == ears_.end() || Hears(at, ear->second) || ear->second.paused_until > at) {
    return kForever;
  }
  return std::max(ear->second.deaf_since, ear->second.paused_until);
}

Nanos Hearing::ReachableFrom(int node) const {
  const auto ear = ears_.find(node);
  return ear == ears_.end()
             ? 0
             : std::max({ear->second.cut_until, ear->second.slow_until, ear->second.paused_until});
}

}  // namespace fsdprun::sim
