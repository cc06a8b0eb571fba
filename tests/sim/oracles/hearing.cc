#include "tests/sim/oracles/hearing.h"

#include <algorithm>

namespace fsdprun::sim {

void Hearing::StreamOpened(Nanos at, int node) { links_[node].opened_at = at; }

void Hearing::StreamClosed(Nanos at, int node) {
  NoteUnreachable(at, links_[node]);
  links_[node].opened_at = kForever;
}

void Hearing::SlowDown(int node, Nanos until) {
  links_[node].slow_until = std::max(links_[node].slow_until, until);
}

void Hearing::CutOff(Nanos at, int node, Nanos until) {
  NoteUnreachable(at, links_[node]);
  links_[node].cut_until = std::max(links_[node].cut_until, until);
}

void Hearing::Pause(Nanos at, int node, Nanos until) {
  NoteUnreachable(at, links_[node]);
  links_[node].paused_until = std::max(links_[node].paused_until, until);
}

void Hearing::PauseCoordinator(Nanos at, Nanos until) {
  for (auto& [node, link] : links_) {
    NoteUnreachable(at, link);
  }
  coordinator_paused_until_ = std::max(coordinator_paused_until_, until);
}

void Hearing::Heal(Nanos at) {
  for (auto& [node, link] : links_) {
    link.cut_until = std::min(link.cut_until, at);
    link.slow_until = std::min(link.slow_until, at);
  }
}

Nanos Hearing::Since(Nanos at, int node) const {
  const auto link = links_.find(node);
  if (link == links_.end()) {
    return kForever;
  }
  const Nanos since =
      std::max({link->second.opened_at, link->second.cut_until, link->second.slow_until,
                link->second.paused_until, coordinator_paused_until_});
  return since > at ? kForever : since;
}

bool Hearing::Hears(Nanos at, const Link& link) const {
  return std::max({link.opened_at, link.cut_until, link.paused_until, coordinator_paused_until_}) <=
         at;
}

void Hearing::NoteUnreachable(Nanos at, Link& link) {
  if (Hears(at, link)) {
    link.unreachable_since = at;
  }
}

Nanos Hearing::UnreachableSince(Nanos at, int node) const {
  const auto link = links_.find(node);
  if (link == links_.end() || Hears(at, link->second) || link->second.paused_until > at) {
    return kForever;
  }
  return std::max(link->second.unreachable_since, link->second.paused_until);
}

Nanos Hearing::ReachableFrom(int node) const {
  const auto link = links_.find(node);
  return link == links_.end() ? 0
                              : std::max({link->second.cut_until, link->second.slow_until,
                                          link->second.paused_until});
}

}  // namespace fsdprun::sim
