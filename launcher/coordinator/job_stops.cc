#include <algorithm>
#include <csignal>
#include <utility>

#include "base/check.h"
#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

/// After a failure.
void JobMachine::Abort(const std::string& why, Out& out) {
  BeginStop(StopKind::kFailure, SIGTERM, std::min(spec_.abort_grace, spec_.stop_grace), why, out);
}

/// The workers may finish what they are doing, such as a checkpoint.
void JobMachine::Drain(StopKind kind, int signal, const std::string& why, Out& out) {
  BeginStop(kind, signal, spec_.stop_grace, why, out);
}

void JobMachine::BeginStop(StopKind kind, int signal, Duration grace, const std::string& why,
                           Out& out) {
  if (phase_ == Phase::kStopping) {
    EscalateStop(kind, grace, out);
    return;
  }
  if (phase_ != Phase::kPreparing && phase_ != Phase::kRunning) {
    return;
  }
  phase_ = Phase::kStopping;
  grow_at_ = grow_by_ = MonoTime::max();
  stop_kind_ = kind;
  stop_signal_ = signal;
  stop_grace_ = grace;
  kill_at_ = out.now + grace;
  stop_why_ = why;
  awaiting_ = members_;
  order_deadline_ = out.now + grace + spec_.stop_margin;
  SetReason("stopping generation " + std::to_string(generation_.value()) + ": " + why);
  for (Node& node : nodes_) {
    if (IsMember(node)) {
      node.state = NodeState::kStopping;
      SendTo(node, generation_, StopWorkers{signal, grace, why}, out);
    }
  }
  if (awaiting_ == 0) {
    FinishStop(out);
  }
}

/// A stop is in progress: a failure overrides a membership change, and a shorter grace is sent to
/// the nodes. A failure does not shorten the grace that an operator's stop gives.
void JobMachine::EscalateStop(StopKind kind, Duration grace, Out& out) {
  if (kind == StopKind::kFailure && stop_kind_ == StopKind::kMembership) {
    stop_kind_ = kind;
  }
  if (grace >= stop_grace_ || (kind == StopKind::kFailure && operator_signal_)) {
    return;
  }
  stop_grace_ = grace;
  kill_at_ = std::min(kill_at_, out.now + grace);
  order_deadline_ = std::min(order_deadline_, out.now + grace + spec_.stop_margin);
  for (Node& node : nodes_) {
    if (node.state == NodeState::kStopping) {
      SendTo(node, generation_, StopWorkers{stop_signal_, grace, stop_why_}, out);
    }
  }
}

void JobMachine::FinishStop(Out& out) {
  FSDPRUN_CHECK(awaiting_ == 0, "every member has stopped");
  for (Node& node : nodes_) {
    const bool was_member = IsMember(node);
    node.previous_group_rank = was_member ? node.assignment.group_rank : -1;
    if (was_member) {
      node.state = NodeState::kSpare;
    }
  }
  members_ = 0;
  order_deadline_ = MonoTime::max();
  if (succeeded_workers_ == world_size_) {
    JobOutcome outcome;
    outcome.reason = "all " + std::to_string(world_size_) + " workers exited with 0";
    Finish(std::move(outcome), out);
    return;
  }
  if (operator_signal_) {
    JobOutcome outcome;
    outcome.kind = OutcomeKind::kStoppedBySignal;
    outcome.exit_code = 1;
    outcome.signal = *operator_signal_;
    outcome.reason = "stopped by signal " + std::to_string(*operator_signal_);
    outcome.grace_cut_short = operator_hurries_;
    Finish(std::move(outcome), out);
    return;
  }
  if (!replaced_why_.empty()) {
    FinishReplaced(out);
  } else if (stop_kind_ != StopKind::kFailure) {
    ++membership_changes_;
    RestartRendezvous(out);
  } else if (failures_.HasPermanent()) {
    FinishFailed("a worker reported a configuration error, which a restart cannot fix", out);
  } else if (restarts_used_ == spec_.max_restarts) {
    FinishFailed(spec_.max_restarts == 0
                     ? "no restarts are allowed (--max-restarts 0)"
                     : "all " + std::to_string(spec_.max_restarts) + " restarts are used up",
                 out);
  } else {
    ++restarts_used_;
    worlds_of_attempt_ = 0;
    PauseBeforeRestart(out);
    RestartRendezvous(out);
  }
}

std::optional<job::StopStatus> JobMachine::stop() const {
  if (phase_ != Phase::kStopping) {
    return std::nullopt;
  }
  job::StopStatus status{.generation = generation_,
                         .operator_signal = operator_signal_.value_or(0),
                         .is_after_failure = stop_kind_ == StopKind::kFailure,
                         .why = stop_why_,
                         .grace = stop_grace_,
                         .kill_at = kill_at_,
                         .left = {}};
  for (const Node& node : nodes_) {
    if (node.state == NodeState::kStopping) {
      const auto exited = std::count(node.exited.begin(), node.exited.end(), true);
      status.left.push_back(
          {node.info.name, node.info.local_world_size - static_cast<int>(exited)});
    }
  }
  return status;
}

}  // namespace fsdprun
