#include "tests/sim/oracles/recovery_oracle.h"

#include <algorithm>
#include <string>

namespace fsdprun::sim {

namespace {

std::string Late(Nanos at, Nanos by) { return std::to_string((at - by) / kMilli) + " ms late"; }

}  // namespace

// --- What happens to nodes

Nanos RecoveryOracle::Node::ReadyAt() const {
  if (admitted_at == kForever || gone_at != kForever || is_leaving || owes_stop != Generation{}) {
    return kForever;
  }
  return std::max({admitted_at, stopped_at, disturbed_until + kHeardAgain});
}

void RecoveryOracle::AgentGone(Nanos at, int node) {
  nodes_[node].gone_at = at;
  if (members_.count(node) != 0) {
    lost_.insert(node);
  }
  Trouble(at, at);
}

void RecoveryOracle::StreamClosed(Nanos at, int node) {
  nodes_[node].admitted_at = kForever;
  nodes_[node].has_stream = false;
  Trouble(at, at);
}

void RecoveryOracle::Disturbed(Nanos at, int node, Nanos until) {
  nodes_[node].disturbed_until = std::max(nodes_[node].disturbed_until, until);
  Trouble(at, until);
}

void RecoveryOracle::CoordinatorPaused(Nanos at, Nanos until) {
  coordinator_pauses_.emplace_back(at, until);
  Trouble(at, until);
}

void RecoveryOracle::Scaled(Nanos at, int min_nodes, int max_nodes) {
  job_.min_nodes = min_nodes;
  job_.max_nodes = max_nodes;
  scaled_at_ = at;
  Trouble(at, at);
}

void RecoveryOracle::Trouble(Nanos at, Nanos until) {
  trouble_.push_back(at);
  if (until != at) {
    trouble_.push_back(until);
  }
}

/// 0 if there was none.
Nanos RecoveryOracle::LastTrouble(Nanos at) const {
  Nanos latest = 0;
  for (const Nanos time : trouble_) {
    latest = time <= at ? std::max(latest, time) : latest;
  }
  return latest;
}

/// 0 if it was never stopped.
Nanos RecoveryOracle::CoordinatorResumed(Nanos at) const {
  Nanos latest = 0;
  for (const auto& [began, ended] : coordinator_pauses_) {
    latest = ended <= at ? std::max(latest, ended) : latest;
  }
  return latest;
}

Nanos RecoveryOracle::PausedBetween(Nanos from, Nanos to) const {
  Nanos paused = 0;
  for (const auto& [began, ended] : coordinator_pauses_) {
    const Nanos begins = std::max(began, from);
    const Nanos ends = std::min(ended, to);
    if (begins < ends) {
      paused += ends - begins;
      from = ends;
    }
  }
  return paused;
}

// --- Messages

void RecoveryOracle::Admitted(Nanos at, int node) {
  Node& admitted = nodes_[node];
  admitted.is_left_out = false;  // Else it is told so next.
  if (admitted.has_stream) {
    admitted.admitted_at = std::min(admitted.admitted_at, at);
  }
}

void RecoveryOracle::JoinedIdle(Nanos at, int node) {
  nodes_[node].owes_stop = {};
  nodes_[node].stopped_at = at;
}

void RecoveryOracle::StoppedHeard(Nanos at, int node, Generation g) {
  if (nodes_[node].owes_stop == g) {
    JoinedIdle(at, node);
  }
}

void RecoveryOracle::StopOrdered(Nanos at, int node, Generation g, Nanos grace) {
  const bool has_just_come = nodes_[node].admitted_at == at;  // With what it had left over.
  if (g == current_ && stop_.ordered_at == kForever) {
    stop_ = {at, std::min(grace, job_.stop_grace)};
    CheckDetection(at, g);
  } else if (g == current_ && !has_just_come && at + grace < stop_.ordered_at + stop_.grace) {
    stop_.grace = at + grace - stop_.ordered_at;  // a failure makes an abort of a drain
  }
}

void RecoveryOracle::WorldOrdered(int node, Generation g, bool is_present) {
  if (g > current_) {
    next_ = g;
    next_members_.insert(node);
    ++next_size_;
    if (!is_present || nodes_[node].gone_at != kForever) {
      next_lost_.insert(node);
    }
  }
}

void RecoveryOracle::OrdersGiven(Nanos at) {
  if (next_members_.empty()) {
    return;
  }
  CheckSize(at);
  CheckReaction(at);
  current_ = next_;
  members_.swap(next_members_);
  next_members_.clear();
  next_size_ = 0;
  lost_.swap(next_lost_);
  next_lost_.clear();
  stop_ = {};
}

void RecoveryOracle::WorldFailedJob(Nanos at) {
  const Nanos by = std::max(StopOverBy(at), CoordinatorResumed(at)) + kSlack;
  if (stop_.ordered_at == kForever) {
    return;
  }
  CountQuestion();
  if (at > by) {
    Complain("the job's end came " + Late(at, by));
  }
}

// --- Time

/// See Note [Time to recover].
Nanos RecoveryOracle::DetectedBy(const InjectedFault& fault) const {
  const Nanos takes = fault.kind == FaultKind::kHangPrepare ? job_.prepare_timeout : job_.lease;
  Nanos from = fault.at;
  for (bool moved = true; moved;) {
    moved = false;
    for (const InjectedFault& other : ledger_.faults()) {
      const bool concerns = other.node == fault.node || other.node == kCoordinatorNode;
      if (concerns && other.generation == Generation{} && other.until > from &&
          other.at <= from + takes) {
        from = other.until;
        moved = true;
      }
    }
  }
  return from + takes + kSlack;
}

/// A node without its keeper fails otherwise, and another agent prepares anew.
bool RecoveryOracle::HungUntil(const InjectedFault& fault, Nanos at) const {
  return fault.kind == FaultKind::kHangPrepare &&
         std::none_of(ledger_.faults().begin(), ledger_.faults().end(),
                      [&](const InjectedFault& other) {
                        return (other.kind == FaultKind::kKillKeeper ||
                                other.kind == FaultKind::kReplaceAgent) &&
                               other.node == fault.node && other.at >= fault.at && other.at <= at;
                      });
}

void RecoveryOracle::CheckDetection(Nanos at, Generation g) {
  for (const InjectedFault& fault : ledger_.faults()) {
    const bool hangs = fault.generation == g && HungUntil(fault, at);
    if ((fault.breaks != g && !hangs) || fault.at > at) {
      continue;
    }
    CountQuestion();
    if (const Nanos by = DetectedBy(fault); at > by) {
      Complain("the stop of generation " + std::to_string(g.value()) + " after a fault on " +
               fault.node_name + " came " + Late(at, by));
    }
  }
}

Nanos RecoveryOracle::StopOverBy(Nanos at) const {
  Nanos over = stop_.ordered_at;
  for (const int member : members_) {
    const auto node = nodes_.find(member);
    if (lost_.count(member) != 0 || node == nodes_.end() || node->second.owes_stop == current_) {
      return stop_.ordered_at + stop_.grace + job_.stop_margin +
             PausedBetween(stop_.ordered_at, at);
    }
    over = std::max(over, node->second.stopped_at);
  }
  return over;
}

Nanos RecoveryOracle::ReadySince(int count, bool even_left_out) const {
  std::vector<Nanos> times;
  for (const auto& [id, node] : nodes_) {
    const Nanos ready_at = node.ReadyAt();
    if (ready_at != kForever && (even_left_out || !node.is_left_out)) {
      times.push_back(ready_at);
    }
  }
  if (static_cast<int>(times.size()) < count) {
    return kForever;
  }
  std::sort(times.begin(), times.end());
  return times[count - 1];
}

/// See Note [Time to recover]; kForever if it cannot be said.
Nanos RecoveryOracle::FormedBy(Nanos at) const {
  const bool is_first = current_ == Generation{};
  const Nanos enough = ReadySince(job_.min_nodes, /*even_left_out=*/true);
  if (enough == kForever || (!is_first && stop_.ordered_at == kForever)) {
    return kForever;
  }
  const Nanos wait = job_.lease + (is_first ? job_.last_call : 0);
  const Nanos nodes = std::min(ReadySince(job_.max_nodes, /*even_left_out=*/false),
                               std::max(enough, LastTrouble(at)) + wait);
  const Nanos stopped = is_first ? 0 : StopOverBy(at) + job_.restart_backoff;
  return std::max({nodes, stopped, CoordinatorResumed(at), scaled_at_}) + job_.place_looks + kSlack;
}

void RecoveryOracle::CheckReaction(Nanos at) {
  const Nanos by = FormedBy(at);
  if (by == kForever) {
    return;
  }
  CountQuestion();
  if (at > by) {
    Complain("generation " + std::to_string(next_.value()) + " was ordered " + Late(at, by));
  }
}

// --- Size

/// See Note [Size of a world].
void RecoveryOracle::CheckSize(Nanos at) {
  const std::string world = "generation " + std::to_string(next_.value()) + " of " +
                            std::to_string(next_size_) + " nodes ";
  CountQuestion();
  if (next_size_ < job_.min_nodes || next_size_ > job_.max_nodes) {
    Complain(world + "is outside " + std::to_string(job_.min_nodes) + " to " +
             std::to_string(job_.max_nodes));
  }
  for (const auto& [id, node] : nodes_) {
    const bool is_member = next_members_.count(id) != 0;
    if (is_member && node.is_left_out && next_size_ > job_.min_nodes) {
      Complain(world + "has node " + std::to_string(id) + ", which is left out");
    }
    if (!is_member && !node.is_left_out && next_size_ < job_.max_nodes && node.ReadyAt() <= at) {
      Complain(world + "leaves out node " + std::to_string(id) + ", which has been ready for " +
               std::to_string((at - node.ReadyAt()) / kMilli) + " ms");
    }
    // What it has said last may lie in its link, or before the coordinator.
    const Nanos heard_last = std::max({node.gone_at, node.disturbed_until, CoordinatorResumed(at)});
    if (is_member && node.gone_at != kForever && at > heard_last + job_.lease + kSlack) {
      Complain(world + "has node " + std::to_string(id) + ", which is long gone");
    }
  }
}

}  // namespace fsdprun::sim
