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
  BeginStop(StopKind::kFailure, SIGTERM, GraceOf(StopKind::kFailure, spec_), why, out);
}

/// The workers may finish what they are doing, such as a checkpoint.
void JobMachine::Drain(StopKind kind, int signal, const std::string& why, Out& out) {
  BeginStop(kind, signal, GraceOf(kind, spec_), why, out);
}

void JobMachine::BeginStop(StopKind kind, int signal, Duration grace, const std::string& why,
                           Out& out) {
  if (phase() == Phase::kStopping) {
    EscalateStop(kind, grace, out);
    return;
  }
  if (phase() != Phase::kPreparing && phase() != Phase::kRunning) {
    return;
  }
  grow_at_ = grow_by_ = MonoTime::max();
  World::Orders orders = world_.BeginStop({kind, signal, grace, why}, out.now);
  place_doubted_at_ = out.now;
  place_sure_until_ = MonoTime::min();
  if (WhatFollows(/*is_done=*/false, out.now).FormsWorld()) {
    CheckPlace(out);
  }
  SetReason("stopping generation " + std::to_string(generation().value()) + ": " + why);
  Send(std::move(orders), out);
  if (!world_.IsAwaited()) {
    FinishStop(out);
  }
}

/// A stop is in progress: a failure overrides a membership change, and a shorter grace is sent to
/// the nodes. A failure does not shorten the grace that an operator's stop gives.
void JobMachine::EscalateStop(StopKind kind, Duration grace, Out& out) {
  if (kind == StopKind::kFailure) {
    world_.CountStopAsFailure();
  }
  if (kind != StopKind::kFailure || !operator_signal_) {
    Send(world_.ShortenGrace(grace, out.now), out);
  }
}

/// What follows the world that is being stopped, as far as that is known by now.
job::Recovery JobMachine::WhatFollows(bool is_done, MonoTime now) const {
  return Recover({.kind = world_.stop().kind,
                  .is_done = is_done,
                  .is_permanent = world_.failures().HasPermanent(),
                  .is_stopped_by_operator = operator_signal_.has_value(),
                  .is_place_lost = !replaced_why_.empty(),
                  .ran_for = world_.RanFor(now)},
                 budgets_, spec_);
}

void JobMachine::FinishStop(Out& out) {
  FSDPRUN_CHECK(!world_.IsAwaited(), "every member has stopped");
  membership_.EndWorld();
  world_.End();
  const bool is_done = world_.HaveAllSucceeded() || HasDoneAllSteps();
  const job::Recovery next = WhatFollows(is_done, out.now);
  budgets_ = next.budgets;
  switch (next.rung) {
    case job::Rung::kSucceed:
      FinishSucceeded(out);
      return;
    case job::Rung::kStopForOperator:
      FinishStoppedByOperator("", out);
      return;
    case job::Rung::kGiveUp:
      FinishFailed(next.why, out);
      return;
    case job::Rung::kLeaveToOtherHost:
      FinishReplaced(out);
      return;
    case job::Rung::kRestart:
      PauseFor(next.pause, out);
      break;
    case job::Rung::kReform:
      break;
  }
  RestartRendezvous(out);
}

void JobMachine::PauseFor(Duration pause, Out& out) {
  if (pause > Duration{}) {
    pause_until_ = out.now + pause;
    SetReason("pausing for " + Seconds(pause) + " before restart " +
              std::to_string(budgets_.restarts_used) + " of " + std::to_string(spec_.max_restarts) +
              " (--restart-backoff)");
  }
}

/// A scheduler's signal came when nothing but the end was left to do: another run would have
/// nothing to do at all.
bool JobMachine::HasDoneAllSteps() const {
  return operator_signal_ && !spec_.signalled_together.empty() && world_.HasDoneAllSteps();
}

// Note [A signal to an agent]
// A scheduler that ends a job signals all of its agents, this process, or both. A node that is shut
// down, or taken away, signals what runs there, and the others may go on without it. Notices
// (SIGUSR1, SIGUSR2) are schedulers' alone. Any other signal is taken for the node's own until all
// other nodes of the allocation that are connected get one, too, or this process does: several
// nodes may be taken away at once. Meanwhile the agent leaves as any other: no time is lost if all
// are meant, because the others are being stopped for the next world. A node that falls silent
// meanwhile may have got the signal as well: if it is given up, the others decide. An agent that
// comes after its node's signal has not got it. Whoever can ask the scheduler learns of the doubt
// by doubtful_signals().
void JobMachine::OnSignalToAgent(const Node& node, int signal, Out& out) {
  if (operator_signal_ || spec_.signalled_together.count(node.info.name) == 0) {
    return;
  }
  const bool is_notice = signal == SIGUSR1 || signal == SIGUSR2;
  if (!is_notice && !IsSignalToAll(node, signal, out.now)) {
    ++doubtful_signals_;
    return;
  }
  TakeForAll(signal, out);
}

void JobMachine::TakeForAll(int signal, Out& out) {
  operator_signal_ = signal;
  agent_told_signal_ = true;
  place_asked_at_ = MonoTime::max();
  if (!outcome_) {
    StopForOperator(/*again=*/false, out);
  }
}

bool JobMachine::IsSignalToAll(const Node& node, int signal, MonoTime now) {
  if (now - std::exchange(signalled_at_, now) > spec_.signal_spread) {
    signalled_nodes_.clear();
  }
  signalled_nodes_.insert(node.info.name);
  doubtful_signal_ = signal;
  return IsNobodyLeftToTell();
}

/// No node of the allocation has a connection and no signal, and none may be on its way.
bool JobMachine::IsNobodyLeftToTell() const {
  if (formations_ == 0 && signalled_nodes_.size() < spec_.signalled_together.size()) {
    return false;  // The others may still be on their way.
  }
  for (const Node& other : membership_.nodes()) {
    const std::string& name = other.info.name;
    if (other.connected && !other.leaving && signalled_nodes_.count(name) == 0 &&
        spec_.signalled_together.count(name) > 0) {
      return false;
    }
  }
  return true;
}

/// The others have had a signal, and this node, which is lost, was the last that could have told.
bool JobMachine::WasLastToTell(const Node& lost) const {
  const MonoTime since = lost.connected ? lost.last_heard : lost.stream_lost_at;
  const std::string& name = lost.info.name;
  return !operator_signal_ && !outcome_ && !signalled_nodes_.empty() &&
         since <= signalled_at_ + spec_.signal_spread && signalled_nodes_.count(name) == 0 &&
         spec_.signalled_together.count(name) > 0 && IsNobodyLeftToTell();
}

std::optional<job::StopStatus> JobMachine::stop() const {
  if (phase() != Phase::kStopping) {
    return std::nullopt;
  }
  job::StopStatus status = world_.StopProgress();
  status.operator_signal = operator_signal_.value_or(0);
  return status;
}

}  // namespace fsdprun
