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
  node.lease_from = Served(now);
  next_scan_ = std::min(next_scan_, now + spec_.suspect_after);
}

void Leases::Expect(Node& node, MonoTime now) {
  node.connected = false;
  node.is_expected = true;
  node.last_heard = now;
  node.stream_lost_at = now;
  node.lease_from = Served(now);
  next_scan_ = std::min(next_scan_, now + spec_.rejoin_grace);
}

void Leases::ExpectNoSuccessor(Node& node, MonoTime now) {
  node.info.has_successor = false;
  if (!node.connected) {
    next_scan_ = std::min(next_scan_, now);
  }
}

void Leases::Break(Node& node, MonoTime now) {
  node.connected = false;
  node.stream_lost_at = now;
  node.lease_from = Served(now);
  next_scan_ = std::min(next_scan_, now + GraceOf(node));
}

void Leases::ForgiveLateness(const Lateness::Found& found, MonoTime now) {
  forgiven_ += found.forgiven;
  if (found.late > kStallTolerance) {
    resumed_at_ = Served(now);
    extended_until_ = resumed_at_ + spec_.dead_after;
  }
}

void Leases::JobRuns(MonoTime now) {
  if (!std::exchange(has_job_run_, true)) {
    resumed_at_ = Served(now);
    next_scan_ = std::min(next_scan_, now + spec_.suspect_after);
  }
}

/// When the lease of a connected node was renewed: by its latest heartbeat, or for all at once.
MonoTime Leases::Renewed(const Node& node) const { return std::max(node.lease_from, resumed_at_); }

/// How long a node without a stream may take to come again.
Duration Leases::GraceOf(const Node& node) const {
  if (node.is_expected) {
    return spec_.rejoin_grace;
  }
  if (node.info.has_successor) {
    return std::max(spec_.reconnect_grace, spec_.dead_after);
  }
  return has_job_run_ ? spec_.reconnect_grace
                      : std::max(spec_.reconnect_grace, spec_.suspect_after);
}

MonoTime Leases::End(const Node& node) const {
  if (node.connected && !has_job_run_) {
    return MonoTime::max();
  }
  const MonoTime end =
      node.connected ? Renewed(node) + spec_.dead_after : node.lease_from + GraceOf(node);
  return std::max(end, extended_until_);
}

/// When it may next have to be suspected, or its lease is over.
MonoTime Leases::NextLookAt(const Node& node) const {
  return node.connected && !node.suspect ? Renewed(node) + spec_.suspect_after : End(node);
}

Leases::Findings Leases::Scan(NodeTable& nodes, MonoTime now) {
  Findings findings;
  const MonoTime served = Served(now);
  int silent = 0;
  int total = 0;
  for (Node& node : nodes) {
    if (node.state == NodeState::kReleased) {
      continue;
    }
    ++total;
    if (node.connected && !node.suspect && served - Renewed(node) >= spec_.suspect_after) {
      node.suspect = true;
      findings.suspects.push_back(node.info.incarnation);
    }
    silent += node.suspect || !node.connected ? 1 : 0;
  }
  findings.notice = has_job_run_ ? ExtendIfCutOff(silent, total, served) : "";
  MonoTime next_look = MonoTime::max();
  for (const Node& node : nodes) {
    if (node.state == NodeState::kReleased) {
      continue;
    }
    const MonoTime next = NextLookAt(node);
    if ((node.connected && !node.suspect) || next > served) {
      next_look = std::min(next_look, next);
      continue;
    }
    findings.lapses.push_back(
        {node.info.incarnation, node.connected ? "was silent for " + Seconds(now - node.last_heard)
                                               : "lost its stream and did not reconnect within " +
                                                     Seconds(now - node.stream_lost_at)});
  }
  next_scan_ = next_look == MonoTime::max() ? next_look : next_look + forgiven_;
  findings.has_changes =
      !findings.suspects.empty() || !findings.notice.empty() || !findings.lapses.empty();
  return findings;
}

/// Once, until nobody is silent any more. Empty, or what is to be said about it.
std::string Leases::ExtendIfCutOff(int silent, int total, MonoTime served) {
  if (silent == 0) {
    is_extended_ = false;
    return "";
  }
  if (is_extended_ || silent < kCutOffNodesMin || silent <= spec_.partition_fraction * total) {
    return "";
  }
  is_extended_ = true;
  extended_until_ = served + spec_.dead_after;
  return std::to_string(silent) + " of " + std::to_string(total) +
         " nodes fell silent at once: this host may be partitioned; extending their leases by " +
         Seconds(spec_.dead_after);
}

}  // namespace fsdprun
