#include "launcher/coordinator/job_record.h"

#include <algorithm>

namespace fsdprun::job {
namespace {

const NodeRecord* Find(const std::vector<NodeRecord>& nodes, Incarnation incarnation) {
  const auto it = std::lower_bound(
      nodes.begin(), nodes.end(), incarnation,
      [](const NodeRecord& node, Incarnation i) { return node.info.incarnation < i; });
  return it != nodes.end() && it->info.incarnation == incarnation ? &*it : nullptr;
}

/// `of` says the incarnation of an element.
template <class Element, class Of>
bool IsStrictlyRising(const std::vector<Element>& elements, Of of) {
  return std::adjacent_find(elements.begin(), elements.end(), [of](const auto& a, const auto& b) {
           return !(of(a) < of(b));
         }) == elements.end();
}

std::string WhyMembersAreWrong(const Record& record) {
  const WorldRecord& world = record.world;
  if (!IsStrictlyRising(record.nodes, [](const NodeRecord& n) { return n.info.incarnation; }) ||
      !IsStrictlyRising(world.members, [](const auto& m) { return m.incarnation; })) {
    return "nodes are out of order or named twice";
  }
  int workers = world.gone_succeeded;
  for (const WorldRecord::Member& member : world.members) {
    const NodeRecord* node = Find(record.nodes, member.incarnation);
    if (node == nullptr || node->group_rank != member.assignment.group_rank ||
        node->info.local_world_size != member.assignment.local_world_size) {
      return "a member of the world does not fit its node";
    }
    if (member.assignment.generation != record.generation ||
        member.assignment.world_size != world.world_size) {
      return "a member belongs to another world";
    }
    workers += member.assignment.local_world_size;
  }
  return world.gone_succeeded < 0 || workers > world.world_size
             ? "there are more workers than the world has"
             : "";
}

std::string WhyWorldIsWrong(const Record& record) {
  const WorldRecord& world = record.world;
  const bool has_world = world.phase != WorldRecord::Phase::kNone;
  if (record.is_over != record.outcome.has_value() || (record.is_over && has_world) ||
      (!has_world && !world.members.empty())) {
    return "phase, members and outcome do not fit together";
  }
  if (has_world && (record.generation == Generation{} || record.formations < 1)) {
    return "there is a world that was never formed";
  }
  if (has_world && world.members.empty()) {
    return "there is a world without nodes";
  }
  if (world.phase == WorldRecord::Phase::kRunning && world.store.port <= 0) {
    return "a world runs without a store";
  }
  return WhyMembersAreWrong(record);
}

/// A world that was begun before an operator has scaled the job may have any size; one that is
/// being prepared was begun later.
std::string WhySizeIsWrong(const Record& record, const NodeLimits& given) {
  const NodeLimits limits = record.scaled.value_or(given);
  if (limits.min_nodes < 1 || limits.max_nodes < limits.min_nodes) {
    return "it was scaled to " + std::to_string(limits.min_nodes) + ":" +
           std::to_string(limits.max_nodes) + " nodes, which means nothing";
  }
  const WorldRecord& world = record.world;
  const int nodes = static_cast<int>(world.members.size());
  const bool is_preparing = world.phase == WorldRecord::Phase::kPreparing;
  if (nodes > limits.max_nodes && (is_preparing || !record.scaled)) {
    return "its world has " + std::to_string(nodes) + " nodes, and --nnodes allows " +
           std::to_string(limits.max_nodes);
  }
  return is_preparing && nodes < limits.min_nodes
             ? "its world has " + std::to_string(nodes) + " nodes, and --nnodes needs " +
                   std::to_string(limits.min_nodes)
             : "";
}

}  // namespace

std::string WhyUnusable(const Record& record, const JobSpec& spec) {
  const RecoveryBudgets& budgets = record.budgets;
  if (record.generation_floor < record.generation) {
    return "its generation is above the highest that was used";
  }
  if (budgets.restarts_used < 0 || budgets.membership_changes < 0 || record.formations < 0 ||
      budgets.worlds_of_attempt < 0 || budgets.failures_in_a_row < 0 ||
      record.formations > 1 + budgets.restarts_used + budgets.membership_changes) {
    return "what it says was used up cannot be";
  }
  if (budgets.restarts_used > spec.max_restarts) {
    return "it has used " + std::to_string(budgets.restarts_used) +
           " restarts, and only --max-restarts " + std::to_string(spec.max_restarts) + " are given";
  }
  const std::string wrong = WhySizeIsWrong(record, {spec.min_nodes, spec.max_nodes});
  return wrong.empty() ? WhyWorldIsWrong(record) : wrong;
}

}  // namespace fsdprun::job
