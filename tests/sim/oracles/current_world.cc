#include "tests/sim/oracles/current_world.h"

#include <utility>

namespace fsdprun::sim {

void CurrentWorld::OrderSent(const ToAgent& order) {
  if (std::holds_alternative<PrepareGeneration>(order.message)) {
    if (order.generation > generation_) {
      generation_ = order.generation;
      members_.clear();
      stop_is_sent_ = false;
    }
    members_.insert(order.incarnation);
  } else if (std::holds_alternative<StopWorkers>(order.message)) {
    owes_stopped_[order.incarnation] = order.generation;
    if (order.generation == generation_ && members_.count(order.incarnation) != 0) {
      told_to_stop_.insert(order.incarnation);
    }
  } else if (std::holds_alternative<RejectAgent>(order.message) ||
             std::holds_alternative<ReleaseAgent>(order.message)) {
    members_.erase(order.incarnation);
  }
}

void CurrentWorld::OrdersGiven() {
  if (!stop_is_sent_ && !told_to_stop_.empty()) {
    stop_is_sent_ = true;
    members_ = told_to_stop_;
  }
  told_to_stop_.clear();
}

void CurrentWorld::ReportArrived(const FromAgent& report) {
  const auto owes = owes_stopped_.find(report.incarnation);
  if (std::holds_alternative<WorkersStopped>(report.message) && owes != owes_stopped_.end() &&
      owes->second == report.generation) {
    owes_stopped_.erase(owes);
  }
}

bool CurrentWorld::IsStale(const FromAgent& report) const {
  if (report.generation == generation_ || std::holds_alternative<AgentHeartbeat>(report.message) ||
      std::holds_alternative<AgentJoined>(report.message) ||
      std::holds_alternative<AgentLeft>(report.message)) {
    return false;
  }
  if (const auto* fault = std::get_if<NodeFaulted>(&report.message)) {
    return fault->kind != CauseKind::kNodeWedged;  // which is about the node
  }
  const auto owes = owes_stopped_.find(report.incarnation);
  return !std::holds_alternative<WorkersStopped>(report.message) || owes == owes_stopped_.end() ||
         owes->second != report.generation;
}

bool CurrentWorld::IsOfMember(const FromAgent& report) const {
  return report.generation == generation_ && members_.count(report.incarnation) != 0;
}

}  // namespace fsdprun::sim
