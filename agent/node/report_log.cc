#include "agent/node/report_log.h"

#include <optional>
#include <utility>
#include <variant>

namespace fsdprun {
namespace {

/// Empty if the message tells of no failure.
std::optional<Failure> FailureIn(const AgentMessage& message) {
  Failure failure;
  if (const auto* exited = std::get_if<WorkerExited>(&message)) {
    if (exited->exit.Succeeded()) {
      return std::nullopt;
    }
    failure.worker = exited->exit;
    failure.what = DescribeExit(exited->exit);
    return failure;
  }
  if (const auto* faulted = std::get_if<NodeFaulted>(&message)) {
    failure.kind = faulted->kind;
    failure.what = faulted->what;
    return failure;
  }
  return std::nullopt;
}

}  // namespace

AgentMessage ReportLog::Add(AgentMessage message, MonoTime happened_at, MonoTime now) {
  reports_.push_back({std::move(message), happened_at});
  return Aged(reports_.back(), now);
}

std::vector<AgentMessage> ReportLog::Repeat(MonoTime now) const {
  std::vector<AgentMessage> messages;
  messages.reserve(reports_.size());
  for (const Report& report : reports_) {
    messages.push_back(Aged(report, now));
  }
  return messages;
}

/// That all have ended is told anew in any case.
bool ReportLog::IsRepeatable(size_t index) const {
  const AgentMessage& message = reports_[index].message;
  if (index < unrepeatable_) {
    return std::holds_alternative<WorkersStopped>(message);
  }
  return !std::holds_alternative<AgentPrepared>(message) &&
         !std::holds_alternative<NodeFaulted>(message);
}

std::vector<NodeRecord::Report> ReportLog::Unrepeatable() const {
  std::vector<NodeRecord::Report> kept;
  for (size_t i = 0; i < reports_.size(); ++i) {
    if (!IsRepeatable(i)) {
      kept.push_back(reports_[i]);
    }
  }
  return kept;
}

size_t ReportLog::CountUnrepeatable() const {
  size_t count = 0;
  for (size_t i = 0; i < reports_.size(); ++i) {
    count += IsRepeatable(i) ? 0 : 1;
  }
  return count;
}

/// See Note [Age of an event].
AgentMessage ReportLog::Aged(const Report& report, MonoTime now) {
  AgentMessage message = report.message;
  const Duration age = now - report.happened_at;
  if (auto* exited = std::get_if<WorkerExited>(&message)) {
    exited->age = age;
  } else if (auto* faulted = std::get_if<NodeFaulted>(&message)) {
    faulted->age = age;
  }
  return message;
}

std::vector<OwnFailure> ReportLog::Failures(const NodeInfo& node,
                                            const RankAssignment& assignment) const {
  std::vector<OwnFailure> failures;
  const auto add = [&](const AgentMessage& message, MonoTime happened_at) {
    if (std::optional<Failure> failure = FailureIn(message)) {
      failure->generation = assignment.generation;
      failure->node_name = node.name;
      failure->node_address = node.address;
      failure->group_rank = assignment.group_rank;
      failures.push_back({*std::move(failure), happened_at});
    }
  };
  for (const Report& report : reports_) {
    if (const auto* ended = std::get_if<WorkersEnded>(&report.message)) {
      for (const WorkerExit& exit : ended->exits) {
        add(WorkerExited{exit}, report.happened_at);
      }
    } else {
      add(report.message, report.happened_at);
    }
  }
  return failures;
}

}  // namespace fsdprun
