// What an operator changes about the nodes of a job: one that is drained, and how many there may
// be.
//
// Note [Draining a node]
// A node that is drained leaves like one whose agent got a signal: it is no member of another
// world, and the one that it is in is stopped with the workers' grace, free of charge. Once it has
// no part in a world, its agent is released with 0, whatever becomes of the job; on every new
// stream again, until it is gone. Its lease says so if it cannot. The agent's incarnation is
// remembered for good, and in the record, so that none that missed the release comes back as a
// spare. Who starts an agent there again starts another incarnation, which is like any other.

#include <csignal>
#include <string>
#include <utility>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

namespace {

ReleaseAgent ReleaseOfDrained() {
  return {.exit_code = 0, .reason = "drained by an operator", .cut_off = true, .job_goes_on = true};
}

}  // namespace

std::string JobMachine::WhyFixed() const {
  if (outcome()) {
    return "the job is over already: " + outcome()->reason;
  }
  if (operator_signal_) {
    return "the job is being stopped by signal " + std::to_string(*operator_signal_);
  }
  return place_.is_lost() ? "this job forms no more worlds: " + place_.lost_why() : "";
}

// --- Draining

void JobMachine::Handle(const job::DrainAsked& asked, Out& out) {
  Node* node = membership_.nodes().Find(asked.incarnation);
  if (node == nullptr || node->leaving || !WhyFixed().empty()) {
    out.changed = false;
    return;
  }
  drained_.insert(asked.incarnation);
  membership_.SetLeaving(*node);
  const World::Member* member = world_.Find(asked.incarnation);
  out.effects.news.emplace_back(
      job::NodeDraining{node->info, member != nullptr ? node->group_rank : -1});
  if (member != nullptr && IsNeeded(*member)) {
    Drain(StopKind::kMembership, SIGTERM, "node " + node->info.name + " is drained by an operator",
          out);
    return;
  }
  if (member != nullptr) {
    world_.Remove(asked.incarnation);
    membership_.SetState(*node, NodeState::kSpare);
  }
  TellToLeave(*node, out);
  MaybeForm(out);
}

/// The others of a world that runs go on without a member whose workers have all succeeded, unless
/// it has their store.
bool JobMachine::IsNeeded(const World::Member& member) const {
  return phase() != Phase::kRunning || !member.IsDone() || member.assignment.group_rank == 0;
}

bool JobMachine::IsToLeave(const Node& node) const {
  return !node.IsMember() && IsDrained(node.info.incarnation);
}

void JobMachine::TellToLeave(const Node& node, Out& out) {
  SendTo(node, Generation{}, ReleaseOfDrained(), out);
}

/// The world that they had a part in has ended.
void JobMachine::TellDrainedToLeave(Out& out) {
  for (const Incarnation incarnation : drained_) {
    const Node* node = membership_.nodes().Find(incarnation);
    if (node != nullptr && node->group_rank >= 0) {
      TellToLeave(*node, out);
    }
  }
}

ReleaseAgent JobMachine::ReleaseOf(const Node& node) {
  return IsDrained(node.info.incarnation) ? ReleaseOfDrained() : ending_.ReleaseOf(node);
}

/// True if the agent is one whose node was drained: it is told so, and nothing else.
bool JobMachine::TurnDrainedAway(Incarnation incarnation, Out& out) {
  if (!IsDrained(incarnation)) {
    return false;
  }
  out.effects.messages.push_back(ToAgent{incarnation, Generation{}, ReleaseOfDrained()});
  return true;
}

// --- How many there may be

void JobMachine::Handle(const job::ScaleAsked& asked, Out& out) {
  const job::NodeLimits limits{asked.min_nodes, asked.max_nodes};
  const job::NodeLimits before{min_nodes(), max_nodes()};
  const bool means_something = limits.min_nodes >= 1 && limits.min_nodes <= limits.max_nodes;
  if (!means_something || limits == before || spec_.node_ranks_bind || !WhyFixed().empty()) {
    out.changed = false;
    return;
  }
  spec_.min_nodes = limits.min_nodes;
  spec_.max_nodes = limits.max_nodes;
  is_scaled_ = true;
  out.effects.news.emplace_back(job::JobScaled{limits, before});
  StopIfSizeIsWrong(out);
  MaybeForm(out);
  MaybeGrow(out);
}

/// Nothing is lost with a world that is only being prepared. One that has begun to end well is not
/// stopped for the sake of the next.
void JobMachine::StopIfSizeIsWrong(Out& out) {
  const int nodes = NodesOfWorld();
  const bool is_preparing = phase() == Phase::kPreparing;
  const bool may_stop = is_preparing || (phase() == Phase::kRunning && !world_.HasAnySucceeded());
  if (may_stop && nodes > spec_.max_nodes) {
    Drain(StopKind::kMembership, SIGTERM,
          "an operator allows " + std::to_string(spec_.max_nodes) + " of " + std::to_string(nodes) +
              " nodes",
          out);
  } else if (is_preparing && nodes < spec_.min_nodes) {
    Drain(StopKind::kMembership, SIGTERM,
          "an operator wants at least " + std::to_string(spec_.min_nodes) + " nodes, and " +
              std::to_string(nodes) + " are there",
          out);
  }
}

}  // namespace fsdprun
