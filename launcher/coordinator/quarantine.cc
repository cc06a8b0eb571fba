#include "launcher/coordinator/quarantine.h"

#include <algorithm>
#include <utility>

#include "launcher/coordinator/seconds_text.h"

namespace fsdprun {

namespace job {
namespace {

bool IsLossOfAnother(const Failure& failure, const NodeKey& node) {
  return failure.kind == CauseKind::kNodeLost &&
         NodeKey{failure.node_name, failure.node_address} != node;
}

/// The same has happened to both, as far as that can be seen.
bool IsAlike(const std::optional<WorldBreak::Worker>& a,
             const std::optional<WorldBreak::Worker>& b) {
  return a && b && (a->rank == b->rank || (a->exit_code == b->exit_code && a->signal == b->signal));
}

}  // namespace

std::string Described(const NodeKey& node) {
  return node.address.empty() || node.address == node.name ? node.name
                                                           : node.name + " (" + node.address + ")";
}

Duration LengthOf(const QuarantinedNode& node, const JobSpec& spec) {
  const int doublings = std::clamp(node.times - 1, 0, kMostDoublings);
  return spec.quarantine_window * kQuarantineWindows * (1 << doublings);
}

WorldBreak BreakOf(const FailureReport& report, bool had_others) {
  const Failure& root = report.root;
  WorldBreak found{.node = {root.node_name, root.node_address},
                   .had_others = had_others,
                   .is_of_several = false,
                   .worker = std::nullopt,
                   .what = root.what};
  if (root.worker) {
    found.worker =
        WorldBreak::Worker{root.worker->rank, root.worker->exit_code, root.worker->signal};
  }
  found.is_of_several =
      root.kind == CauseKind::kNodeLost &&
      std::any_of(report.others.begin(), report.others.end(),
                  [&](const Failure& other) { return IsLossOfAnother(other, found.node); });
  return found;
}

}  // namespace job

// --- Evidence

void Quarantine::LostEarly(job::WorldBreak loss) {
  if (!lost_early_) {
    lost_early_ = std::move(loss);
  } else if (lost_early_->node != loss.node) {
    lost_early_->is_of_several = true;
  }
}

/// See Note [Evidence about a node].
Quarantine::Findings Quarantine::WorldEnded(std::optional<job::WorldBreak> failure, MonoTime now) {
  std::optional<job::WorldBreak> loss = std::exchange(lost_early_, std::nullopt);
  std::optional<job::WorldBreak> found = failure ? std::move(failure) : std::move(loss);
  Findings findings;
  if (spec_.quarantine_after == 0 || !found) {
    return findings;
  }
  Acquit(*found, now, &findings);
  if (!found->had_others) {
    return findings;
  }
  const job::NodeKey node = found->node;
  Count(*std::move(found), now);
  if (static_cast<int>(in_a_row_.size()) < spec_.quarantine_after) {
    return findings;
  }
  const job::WorldBreak& last = in_a_row_.back().what;
  Held held{.node = {node, static_cast<int>(in_a_row_.size()), last.worker, last.what},
            .since = now};
  in_a_row_.clear();
  if (FindHeld(node) == nullptr) {
    held.node.times = ++times_[node];
    findings.push_back({Finding::Kind::kLeftOut, held.node, ""});
    Hold(std::move(held));
  }
  return findings;
}

/// A break of another node, or of several, begins a new row.
void Quarantine::Count(job::WorldBreak what, MonoTime now) {
  if (what.is_of_several || (!in_a_row_.empty() && in_a_row_.front().what.node != what.node)) {
    in_a_row_.clear();
  }
  if (what.is_of_several) {
    return;
  }
  in_a_row_.push_back({now, std::move(what)});
  while (in_a_row_.front().at + spec_.quarantine_window < now) {
    in_a_row_.pop_front();
  }
}

void Quarantine::Acquit(const job::WorldBreak& what, MonoTime now, Findings* findings) {
  const auto is_acquitted = [&](const Held& held) {
    return held.node.node != what.node && now <= held.since + spec_.quarantine_window &&
           job::IsAlike(held.node.worker, what.worker);
  };
  for (const Held& held : held_) {
    if (is_acquitted(held)) {
      findings->push_back({Finding::Kind::kTakenAgain, held.node,
                           "without it, " + what.what + " on node " + job::Described(what.node) +
                               ": the same happens elsewhere"});
      times_.erase(held.node.node);
    }
  }
  changes_ += std::erase_if(held_, is_acquitted);
}

/// See Note [The end of a quarantine].
Quarantine::Findings Quarantine::EndOverdue(MonoTime now) {
  Findings findings;
  const auto is_over = [&](const Held& held) {
    return now >= held.since + job::LengthOf(held.node, spec_);
  };
  for (const Held& held : held_) {
    if (is_over(held)) {
      findings.push_back(
          {Finding::Kind::kTakenAgain, held.node,
           "its quarantine of " + Seconds(job::LengthOf(held.node, spec_)) + " is over"});
    }
  }
  changes_ += std::erase_if(held_, is_over);
  return findings;
}

// --- Who is left out

void Quarantine::Hold(Held held) {
  const auto place =
      std::lower_bound(held_.begin(), held_.end(), held.node.node,
                       [](const Held& a, const job::NodeKey& key) { return a.node.node < key; });
  held_.insert(place, std::move(held));
  ++changes_;
}

Quarantine::Held* Quarantine::FindHeld(const job::NodeKey& node) {
  const auto it = std::find_if(held_.begin(), held_.end(),
                               [&](const Held& held) { return held.node.node == node; });
  return it == held_.end() ? nullptr : &*it;
}

const job::QuarantinedNode* Quarantine::Find(const job::NodeKey& node) const {
  const auto it = std::find_if(held_.begin(), held_.end(),
                               [&](const Held& held) { return held.node.node == node; });
  return it == held_.end() ? nullptr : &it->node;
}

/// Each is told of once, until it can be left out again.
Quarantine::Findings Quarantine::Needed(const std::vector<job::NodeKey>& nodes) {
  Findings findings;
  for (Held& held : held_) {
    const bool is_needed = std::find(nodes.begin(), nodes.end(), held.node.node) != nodes.end();
    if (is_needed && !held.is_needed) {
      findings.push_back({Finding::Kind::kNeeded, held.node, ""});
    }
    held.is_needed = is_needed;
  }
  return findings;
}

std::string Quarantine::Describe(const job::QuarantinedNode& node) const {
  return "node " + job::Described(node.node) + " was the first to fail in " +
         std::to_string(node.breaks) + " worlds in a row within " +
         Seconds(spec_.quarantine_window) + " (the last: " + node.what + ")";
}

// --- Taking a job over

std::vector<job::QuarantinedNode> Quarantine::ToRecord() const {
  std::vector<job::QuarantinedNode> nodes;
  nodes.reserve(held_.size());
  for (const Held& held : held_) {
    nodes.push_back(held.node);
  }
  return nodes;
}

void Quarantine::Restore(const std::vector<job::QuarantinedNode>& nodes, MonoTime now) {
  for (const job::QuarantinedNode& node : nodes) {
    if (spec_.quarantine_after > 0 && FindHeld(node.node) == nullptr) {
      times_[node.node] = node.times;
      Hold({.node = node, .since = now});
    }
  }
}

}  // namespace fsdprun
