#include "tests/sim/oracles/signal_oracle.h"

#include <algorithm>
#include <csignal>
#include <string>

namespace fsdprun::sim {

namespace {

/// Until a heartbeat is heard again.
constexpr Nanos kHeardAgain = 1500 * kMilli;
/// What messages and timers take.
constexpr Nanos kSlack = 1500 * kMilli;

}  // namespace

// --- What happens to nodes

void SignalOracle::AgentGone(Nanos at, int node) {
  nodes_[node].is_gone = true;
  if (const auto seat = seats_.find(nodes_[node].agent); seat != seats_.end()) {
    // What it has said last may lie in its link until then.
    seat->second.gone_at = std::max(at, nodes_[node].disturbed_until);
  }
}

void SignalOracle::Disturbed(Nanos at, int node, Nanos until) {
  Node& d = nodes_[node];
  if (at > d.disturbed_until + kHeardAgain || d.disturbed_from == 0) {
    d.disturbed_from = at;
  }
  d.disturbed_until = std::max({d.disturbed_until, until, coordinator_resumes_at_});
}

void SignalOracle::Paused(Nanos at, int node, Nanos until) {
  Node& paused = nodes_[node];
  paused.paused_from = at > paused.paused_until ? at : paused.paused_from;
  paused.paused_until = std::max(paused.paused_until, until);
  Disturbed(at, node, until);
}

/// What a node says again meanwhile lies unread.
void SignalOracle::CoordinatorPaused(Nanos at, Nanos until) {
  coordinator_resumes_at_ = std::max(coordinator_resumes_at_, until);
  for (auto& [id, node] : nodes_) {
    if (node.disturbed_from != 0 && at <= node.disturbed_until + kHeardAgain) {
      node.disturbed_until = std::max(node.disturbed_until, until);
    }
  }
}

// --- What the coordinator hears and says

void SignalOracle::Admitted(int node, Incarnation agent) {
  if (!IsInAllocation(node)) {
    return;
  }
  nodes_[node].agent = agent;
  const auto [seat, is_new] = seats_.try_emplace(agent);
  if (is_new || seat->second.dismissed_at != kForever) {
    seat->second = {};
    seat->second.node = node;
    told_.erase(node);
    surely_told_.erase(node);
  }
  seat->second.is_connected = true;
}

void SignalOracle::Dismissed(Nanos at, Incarnation agent) {
  if (const auto seat = seats_.find(agent); seat != seats_.end()) {
    seat->second.dismissed_at = std::min(seat->second.dismissed_at, at);
  }
}

void SignalOracle::StreamLost(Nanos at, Incarnation agent) {
  if (const auto seat = seats_.find(agent); seat != seats_.end()) {
    seat->second.is_connected = false;
    seat->second.stream_lost_at = at;
  }
}

void SignalOracle::LeftHeard(Nanos at, Incarnation agent, const AgentLeft& left) {
  const auto found = seats_.find(agent);
  if (found == seats_.end() || found->second.left_at != kForever ||
      found->second.dismissed_at != kForever) {
    return;
  }
  Seat& seat = found->second;
  const Node* node = AgentOf(agent, seat);
  const bool is_known = seat.is_connected && node != nullptr && !MayBeGivenUp(*node, at);
  seat.left_at = at;
  seat.has_told = left.signal != 0;
  if (left.signal == 0) {
    return;
  }
  if (at > told_at_ + job_.spread) {
    told_.clear();
    surely_told_.clear();
  }
  told_at_ = at;
  told_.insert(seat.node);
  const bool is_notice = left.signal == SIGUSR1 || left.signal == SIGUSR2;
  may_stop_ = may_stop_ || is_notice;
  if (is_known) {
    surely_told_at_ = at;
    surely_told_.insert(seat.node);
    notice_surely_told_ = notice_surely_told_ || is_notice;
  }
}

void SignalOracle::WorldOrdered() {
  has_world_ = true;
  if (must_stop_since_ != kForever) {
    Complain("a world is ordered although all nodes of the allocation have had a signal");
  }
}

void SignalOracle::OrdersGiven(Nanos at) {
  if (told_.empty() || at > told_at_ + job_.spread + job_.longest_lease + 2 * kSlack) {
    return;
  }
  CheckMay(at);
  CheckMust(at);
}

void SignalOracle::Decided(Nanos at, const JobOutcome& outcome) {
  if (told_at_ < 0) {
    return;
  }
  const bool is_stopped = outcome.kind == OutcomeKind::kStoppedBySignal;
  const bool must_stop = must_stop_since_ != kForever;
  if (!stop_heard_ && (must_stop || !may_stop_)) {
    CountQuestion();
  }
  if (is_stopped && !stop_heard_ && !may_stop_) {
    Complain("the job counts as stopped by a signal " +
             (bystander_
                  ? "that node " + std::to_string(*bystander_) + ", which was there, did not get"
                  : std::string("of which not all of its nodes had told")));
  } else if (must_stop && outcome.kind == OutcomeKind::kFailed) {
    Complain("the job counts as failed although all nodes of the allocation have had a signal");
  } else if (must_stop) {
    const Nanos by = std::max(must_stop_since_, std::min(coordinator_resumes_at_, at)) + job_.stop;
    if (at > by + kSlack) {
      Complain("the job ended " + std::to_string((at - by) / kMilli) +
               " ms too late after a signal to all nodes of the allocation");
    }
  }
}

// --- Who is there

/// The present agent of its node, or null.
const SignalOracle::Node* SignalOracle::AgentOf(Incarnation agent, const Seat& seat) const {
  const Node& node = nodes_.at(seat.node);
  return node.agent == agent && !node.is_gone ? &node : nullptr;
}

bool SignalOracle::MayBeGivenUp(const Node& node, Nanos at) const {
  return node.disturbed_from != 0 && at <= node.disturbed_until + kHeardAgain &&
         at + kHeardAgain >= node.disturbed_from + job_.lease;
}

/// For certain, and it fell silent soon enough after the latest who told. A coordinator that was
/// stopped hears that only when it goes on.
bool SignalOracle::IsGivenUp(Incarnation agent, const Seat& seat, Nanos at) const {
  Nanos since = seat.is_connected ? seat.gone_at : seat.stream_lost_at;
  const Node* node = AgentOf(agent, seat);
  if (node != nullptr && node->paused_until > at && node->disturbed_from == node->paused_from) {
    since = std::min(since, node->paused_from);
  }
  since = std::max(since, coordinator_resumes_at_);
  return since + kSlack <= surely_told_at_ + job_.spread &&
         since + job_.longest_lease + kSlack <= at;
}

bool SignalOracle::IsThere(Incarnation agent, const Seat& seat, Nanos at) const {
  const Node* node = AgentOf(agent, seat);
  return node != nullptr && seat.is_connected && seat.dismissed_at >= at &&
         seat.left_at == kForever && !node->is_signalled && !MayBeGivenUp(*node, at);
}

bool SignalOracle::IsComplete(const std::set<int>& told) const {
  return has_world_ || told.size() == job_.allocation.size();
}

void SignalOracle::CheckMay(Nanos at) {
  if (!IsComplete(told_)) {
    return;
  }
  for (const auto& [agent, seat] : seats_) {
    if (IsThere(agent, seat, at)) {
      bystander_ = seat.node;
      return;
    }
  }
  may_stop_ = true;
}

/// Of an agent that has not told.
bool SignalOracle::CountsNoMore(Incarnation agent, const Seat& seat, Nanos at) const {
  const bool had_gone = std::min(seat.left_at, seat.dismissed_at) < surely_told_at_ ||
                        (!seat.is_connected && seat.stream_lost_at < surely_told_at_);
  return had_gone || IsGivenUp(agent, seat, at);
}

void SignalOracle::CheckMust(Nanos at) {
  const bool is_told = !surely_told_.empty() && IsComplete(surely_told_);
  const bool must = notice_surely_told_ ||
                    (is_told && std::all_of(seats_.begin(), seats_.end(), [&](const auto& entry) {
                       return entry.second.has_told || CountsNoMore(entry.first, entry.second, at);
                     }));
  if (must) {
    must_stop_since_ = std::min(must_stop_since_, at);
  }
}

}  // namespace fsdprun::sim
