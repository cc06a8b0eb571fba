// Who is silent, and since when.

#include <algorithm>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;

namespace {

/// Fewer silent nodes than this are never attributed to the coordinator's own network.
constexpr int kCutOffNodesMin = 3;

}  // namespace

/// What was due while the coordinator itself did not run says nothing about the nodes: their
/// heartbeats and answers lie unread, and the agents whose stream broke are redialling. When each
/// was last heard stays as it is: it may tell the cause of a failure from its victims.
void JobMachine::ForgiveStall(MonoTime now, job::Effects& effects) {
  effects.stalled = {};
  if (promised_wake_ == MonoTime::max() || now - promised_wake_ <= kStallTolerance) {
    return;
  }
  effects.stalled = now - promised_wake_;
  resumed_at_ = now;
  lease_extended_until_ = now + spec_.dead_after;
  for (MonoTime* deadline :
       {&order_deadline_, &join_deadline_, &last_call_at_, &cannot_start_at_}) {
    *deadline = *deadline == MonoTime::max() ? *deadline : *deadline + effects.stalled;
  }
}

/// When the lease of a connected node was renewed: by its latest heartbeat, or when the coordinator
/// resumed after a stall.
MonoTime JobMachine::Renewed(const Node& node) const {
  return std::max(node.last_heard, resumed_at_);
}

MonoTime JobMachine::LeaseEnd(const Node& node) const {
  const MonoTime end = node.connected ? Renewed(node) + spec_.dead_after
                                      : node.stream_lost_at + spec_.reconnect_grace;
  return std::max(end, lease_extended_until_);
}

void JobMachine::ScanLeases(Out& out) {
  int silent = 0;
  int total = 0;
  for (Node& node : nodes_) {
    if (node.state == NodeState::kReleased) {
      continue;
    }
    ++total;
    if (node.connected && !node.suspect && out.now - Renewed(node) >= spec_.suspect_after) {
      node.suspect = true;
      out.changed = true;
    }
    silent += node.suspect || !node.connected ? 1 : 0;
  }
  ExtendLeasesIfCutOff(silent, total, out);
  std::vector<Incarnation> lost;
  next_scan_ = MonoTime::max();
  for (const Node& node : nodes_) {
    if (node.state == NodeState::kReleased) {
      continue;
    }
    const bool fresh = node.connected && !node.suspect;
    const MonoTime next = fresh ? Renewed(node) + spec_.suspect_after : LeaseEnd(node);
    if (!fresh && next <= out.now) {
      lost.push_back(node.info.incarnation);
    } else {
      next_scan_ = std::min(next_scan_, next);
    }
  }
  for (const Incarnation incarnation : lost) {
    const Node& node = nodes_.At(incarnation);
    const std::string what = node.connected ? "was silent for " + Seconds(out.now - node.last_heard)
                                            : "lost its stream and did not reconnect within " +
                                                  Seconds(out.now - node.stream_lost_at);
    out.changed = true;
    LoseNode(incarnation, CauseKind::kNodeLost, what, out);
  }
}

void JobMachine::ExtendLeasesIfCutOff(int silent, int total, Out& out) {
  if (silent == 0) {
    lease_extended_ = false;
    return;
  }
  if (lease_extended_ || silent < kCutOffNodesMin || silent <= spec_.partition_fraction * total) {
    return;
  }
  lease_extended_ = true;
  lease_extended_until_ = out.now + spec_.dead_after;
  out.changed = true;
  SetReason(std::to_string(silent) + " of " + std::to_string(total) +
            " nodes fell silent at once: this host may be partitioned; extending their leases by " +
            Seconds(spec_.dead_after));
}

}  // namespace fsdprun
