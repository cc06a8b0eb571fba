#include <algorithm>
#include <csignal>
#include <vector>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::Phase;

void JobMachine::OnDelaysDue(Out& out) {
  if (out.now >= growth_.due()) {
    out.changed = true;
    Grow(out);
  }
  if (phase() != Phase::kRendezvous) {
    return;
  }
  if (out.now >= cannot_start_at_) {
    out.changed = true;
    MaybeFinishCannotStart(out);
  } else if (rendezvous_.EndPauseIfDue(out.now)) {
    out.changed = true;
    MaybeForm(out);
  }
}

// --- Growth

bool JobMachine::MayGrow() const {
  return (phase() == Phase::kRunning || phase() == Phase::kPreparing) &&
         NodesOfWorld() < spec_.max_nodes && !world_.HasAnySucceeded() && !place_.is_lost();
}

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
  growth_.Await(out.now);
}

void JobMachine::Grow(Out& out) {
  growth_.Cancel();
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
