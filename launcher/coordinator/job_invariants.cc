#include <algorithm>
#include <vector>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

std::string JobMachine::CheckInvariants() const {
  for (const std::string& broken : {CheckMilestones(), CheckCounts(), CheckRanks()}) {
    if (!broken.empty()) {
      return broken;
    }
  }
  return "";
}

std::string JobMachine::CheckMilestones() const {
  if (generation_ < before_.generation) {
    return "the generation went back";
  }
  if (budgets_.restarts_used < before_.restarts_used ||
      budgets_.restarts_used > spec_.max_restarts) {
    return "the restart budget is not a falling count";
  }
  if (budgets_.membership_changes < before_.membership_changes) {
    return "membership changes were forgotten";
  }
  if (before_.outcome_decided && !outcome_) {
    return "a decided outcome was taken back";
  }
  if (formations_ != before_.formations && generation_ == before_.generation) {
    return "a world was formed without a new generation";
  }
  if (formations_ > 1 + budgets_.restarts_used + budgets_.membership_changes) {
    return "more worlds than the first, the restarts and the membership changes account for";
  }
  const bool ended = phase_ == Phase::kReleasing || phase_ == Phase::kFinished;
  if (ended != outcome_.has_value()) {
    return "phase " + std::string(job::PhaseName(phase_)) + " does not fit the outcome";
  }
  return "";
}

std::string JobMachine::CheckCounts() const {
  int members = 0;
  int owing = 0;
  for (const Node& node : membership_.nodes()) {
    members += IsMember(node) ? 1 : 0;
    owing += (phase_ == Phase::kPreparing && node.state == NodeState::kPreparing) ||
                     (phase_ == Phase::kRunning && node.state == NodeState::kCommitted) ||
                     (phase_ == Phase::kStopping && node.state == NodeState::kStopping)
                 ? 1
                 : 0;
  }
  const bool has_world =
      phase_ == Phase::kPreparing || phase_ == Phase::kRunning || phase_ == Phase::kStopping;
  if (const std::string_view broken = membership_.nodes().CheckInvariants(); !broken.empty()) {
    return std::string(broken);
  }
  if (members != members_ || (!has_world && members != 0)) {
    return "members_ is " + std::to_string(members_) + ", counted " + std::to_string(members);
  }
  if (owing != awaiting_) {
    return "awaiting_ is " + std::to_string(awaiting_) + ", counted " + std::to_string(owing);
  }
  if (phase_ == Phase::kPreparing && (members < spec_.min_nodes || members > spec_.max_nodes)) {
    return "a world of " + std::to_string(members) + " nodes is being formed";
  }
  if (owing > 0 && order_deadline_ == MonoTime::max()) {
    return "an order is open without a deadline";
  }
  if (phase_ == Phase::kRendezvous && join_deadline_ == MonoTime::max()) {
    return "rendezvous without a deadline";
  }
  if (succeeded_workers_ > world_size_) {
    return "more workers succeeded than the world has";
  }
  return "";
}

/// While a world has all its members, their ranks tile 0..N-1.
std::string JobMachine::CheckRanks() const {
  if (phase_ != Phase::kPreparing) {
    return "";
  }
  std::vector<const RankAssignment*> by_group_rank(members_, nullptr);
  for (const Node& node : membership_.nodes()) {
    if (!IsMember(node)) {
      continue;
    }
    const RankAssignment& a = node.assignment;
    if (a.generation != generation_ || a.group_rank < 0 || a.group_rank >= members_ ||
        by_group_rank[a.group_rank] != nullptr || a.world_size != world_size_ ||
        a.local_world_size != node.info.local_world_size) {
      return "the assignment of node " + node.info.name + " does not fit the world";
    }
    by_group_rank[a.group_rank] = &a;
  }
  int rank = 0;
  for (const RankAssignment* a : by_group_rank) {
    if (a->rank_offset != rank) {
      return "the ranks have a gap or an overlap at " + std::to_string(rank);
    }
    rank += a->local_world_size;
  }
  return rank == world_size_ ? "" : "the ranks do not add up to the world size";
}

}  // namespace fsdprun
