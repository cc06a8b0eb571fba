#include <algorithm>
#include <vector>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::Phase;

std::string JobMachine::CheckInvariants() const {
  for (const std::string& broken : {CheckMilestones(), CheckMembers(), world_.CheckInvariants()}) {
    if (!broken.empty()) {
      return broken;
    }
  }
  return "";
}

std::string JobMachine::CheckMilestones() const {
  if (generation() < before_.generation) {
    return "the generation went back";
  }
  if (budgets_.restarts_used < before_.restarts_used ||
      budgets_.restarts_used > spec_.max_restarts) {
    return "the restart budget is not a falling count";
  }
  if (budgets_.membership_changes < before_.membership_changes) {
    return "membership changes were forgotten";
  }
  if (before_.outcome_decided && !outcome()) {
    return "a decided outcome was taken back";
  }
  if (formations_ != before_.formations && generation() == before_.generation) {
    return "a world was formed without a new generation";
  }
  if (formations_ > 1 + budgets_.restarts_used + budgets_.membership_changes) {
    return "more worlds than the first, the restarts and the membership changes account for";
  }
  return "";
}

/// The members of the world are those nodes that count as such.
std::string JobMachine::CheckMembers() const {
  if (std::string broken = membership_.CheckInvariants(); !broken.empty()) {
    return broken;
  }
  size_t members = 0;
  for (const Node& node : membership_.nodes()) {
    const World::Member* member = world_.Find(node.info.incarnation);
    if (node.IsMember() != (member != nullptr) ||
        (member != nullptr && member->assignment.group_rank != node.group_rank)) {
      return "node " + node.info.name + " and the world do not agree on whether it is a member";
    }
    if (node.is_left_out != (quarantine_.Find(job::KeyOf(node.info)) != nullptr)) {
      return "node " + node.info.name + " is left out, or is not, against what was decided";
    }
    if (IsDrained(node.info.incarnation) &&
        (!node.leaving || (node.IsMember() && phase() != Phase::kStopping))) {
      return "node " + node.info.name + " is drained, but may work on";
    }
    members += node.IsMember() ? 1 : 0;
  }
  if (members != world_.members().size()) {
    return "the world has a member that is no node";
  }
  if (phase() == Phase::kRendezvous && rendezvous_.join_deadline() == MonoTime::max()) {
    return "rendezvous without a deadline";
  }
  return "";
}

}  // namespace fsdprun
