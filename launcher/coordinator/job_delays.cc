#include <algorithm>
#include <csignal>
#include <vector>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::Phase;

void JobMachine::OnDelaysDue(Out& out) {
  if (out.now >= grow_at_) {
    out.changed = true;
    Grow(out);
  }
  if (phase() != Phase::kRendezvous) {
    return;
  }
  if (out.now >= cannot_start_at_) {
    out.changed = true;
    MaybeFinishCannotStart(out);
  } else if (out.now >= pause_until_) {
    pause_until_ = MonoTime::max();
    out.changed = true;
    MaybeForm(out);
  }
}

// --- Growth

bool JobMachine::MayGrow() const {
  return (phase() == Phase::kRunning || phase() == Phase::kPreparing) &&
         NodesOfWorld() < spec_.max_nodes && !world_.HasAnySucceeded() && !place_.is_lost();
}

/// Nodes that are started together come one after the other, and cost one stop, not one each.
void JobMachine::MaybeGrow(Out& out) {
  const int joiners = MayGrow() ? static_cast<int>(membership_.Eligible().size()) : 0;
  if (joiners == 0) {
    return;
  }
  if (!place_.IsSure(out.now)) {
    CheckPlace(out);  // A world that runs is not stopped for one that cannot be formed.
    return;
  }
  if (NodesOfWorld() + joiners >= spec_.max_nodes) {
    Grow(out);
    return;
  }
  grow_by_ = std::min(grow_by_, out.now + spec_.growth_settle_max);
  grow_at_ = std::min(out.now + spec_.growth_settle, grow_by_);
}

void JobMachine::Grow(Out& out) {
  grow_at_ = grow_by_ = MonoTime::max();
  const std::vector<Incarnation> joiners =
      MayGrow() ? membership_.Eligible() : std::vector<Incarnation>{};
  if (joiners.empty()) {
    return;
  }
  if (!place_.IsSure(out.now)) {
    CheckPlace(out);
    return;
  }
  const std::string first = membership_.nodes().At(joiners.front()).info.name;
  Drain(StopKind::kMembership, SIGTERM,
        (joiners.size() == 1 ? "node " + first + " joins"
                             : std::to_string(joiners.size()) + " nodes join") +
            " a world of " + std::to_string(NodesOfWorld()),
        out);
}

}  // namespace fsdprun
