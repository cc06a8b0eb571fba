#include "launcher/coordinator/leases.h"

#include <algorithm>

#include "launcher/coordinator/seconds_text.h"

namespace fsdprun {

using job::Node;
using job::NodeState;

namespace {

/// Fewer silent nodes than this are never attributed to the coordinator's own network.
constexpr int kCutOffNodesMin = 3;

}  // namespace

void Leases::Begin(Node& node, MonoTime now) {
  node.connected = true;
  node.is_expected = false;
  node.suspect = false;
  node.last_heard = now;
  next_scan_ = std::min(next_scan_, now + spec_.suspect_after);
}

void Leases::Expect(Node& node, MonoTime now) {
  node.connected = false;
  node.is_expected = true;
  node.last_heard = now;
  node.stream_lost_at = now;
  next_scan_ = std::min(next_scan_, now + spec_.rejoin_grace);
}

void Leases::Break(Node& node, MonoTime now) {
  node.connected = false;
  node.stream_lost_at = now;
  next_scan_ = std::min(next_scan_, now + spec_.reconnect_grace);
}

void Leases::ForgiveStall(MonoTime now) {
  resumed_at_ = now;
  extended_until_ = now + spec_.dead_after;
}

/// When the lease of a connected node was renewed: by its latest heartbeat, or when the coordinator
/// resumed after a stall.
MonoTime Leases::Renewed(const Node& node) const { return std::max(node.last_heard, resumed_at_); }

MonoTime Leases::End(const Node& node) const {
  const Duration grace = node.is_expected ? spec_.rejoin_grace : spec_.reconnect_grace;
  const MonoTime end =
      node.connected ? Renewed(node) + spec_.dead_after : node.stream_lost_at + grace;
  return std::max(end, extended_until_);
}

Leases::Findings Leases::Scan(NodeTable& nodes, MonoTime now) {
  Findings findings;
  int silent = 0;
  int total = 0;
  for (Node& node : nodes) {
    if (node.state == NodeState::kReleased) {
      continue;
    }
    ++total;
    if (node.connected && !node.suspect && now - Renewed(node) >= spec_.suspect_after) {
      node.suspect = true;
      findings.has_changes = true;
    }
    silent += node.suspect || !node.connected ? 1 : 0;
  }
  findings.notice = ExtendIfCutOff(silent, total, now);
  next_scan_ = MonoTime::max();
  for (const Node& node : nodes) {
    if (node.state == NodeState::kReleased) {
      continue;
    }
    const bool fresh = node.connected && !node.suspect;
    const MonoTime next = fresh ? Renewed(node) + spec_.suspect_after : End(node);
    if (fresh || next > now) {
      next_scan_ = std::min(next_scan_, next);
      continue;
    }
    findings.lapses.push_back(
        {node.info.incarnation, node.connected ? "was silent for " + Seconds(now - node.last_heard)
                                               : "lost its stream and did not reconnect within " +
                                                     Seconds(now - node.stream_lost_at)});
  }
  findings.has_changes |= !findings.notice.empty() || !findings.lapses.empty();
  return findings;
}

/// Once, until nobody is silent any more. Empty, or what is to be said about it.
std::string Leases::ExtendIfCutOff(int silent, int total, MonoTime now) {
  if (silent == 0) {
    is_extended_ = false;
    return "";
  }
  if (is_extended_ || silent < kCutOffNodesMin || silent <= spec_.partition_fraction * total) {
    return "";
  }
  is_extended_ = true;
  extended_until_ = now + spec_.dead_after;
  return std::to_string(silent) + " of " + std::to_string(total) +
         " nodes fell silent at once: this host may be partitioned; extending their leases by " +
         Seconds(spec_.dead_after);
}

}  // namespace fsdprun
