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
  growth_.Cancel();
  Send(world_.BeginStop({kind, signal, grace, why}, out.now), out);
  out.effects.news.emplace_back(job::WorldStopping{generation(), kind, why});
  place_.Doubt(out.now);
  if (WhatFollows(/*is_done=*/false, out.now).FormsWorld()) {
    CheckPlace(out);
  }
  SetReason("stopping generation " + std::to_string(generation().value()) + ": " + why);
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
                  .is_place_lost = place_.is_lost(),
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
      Finish(job::Succeeded(world_), out);
      return;
    case job::Rung::kStopForOperator:
      Finish(job::StoppedBySignal(*operator_signal_, "", operator_hurries_), out);
      return;
    case job::Rung::kGiveUp:
      Finish(job::FailedWith(world_, next.why), out);
      return;
    case job::Rung::kLeaveToOtherHost:
      Finish(OutcomeWithoutPlace(), out);
      return;
    case job::Rung::kRestart:
    case job::Rung::kReform:
      RestartRendezvous(next.pause, out);
      return;
  }
}

/// A scheduler's signal came when nothing but the end was left to do: another run would have
/// nothing to do at all.
bool JobMachine::HasDoneAllSteps() const {
  return operator_signal_ && !spec_.signalled_together.empty() && world_.HasDoneAllSteps();
}

void JobMachine::OnSignalToAgent(const Node& node, int signal, Out& out) {
  if (!operator_signal_ &&
      agent_signals_.Heard(node, signal, membership_.nodes(), formations_ > 0, out.now)) {
    TakeForAll(signal, out);
  }
}

void JobMachine::TakeForAll(int signal, Out& out) {
  operator_signal_ = signal;
  agent_told_signal_ = true;
  place_.Withdraw();
  if (!outcome()) {
    StopForOperator(/*again=*/false, out);
  }
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
