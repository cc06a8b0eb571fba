// Worlds, from the first node to the end of the job.

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "base/check.h"
#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

// --- Forming

void JobMachine::MaybeForm(Out& out) {
  if (phase() != Phase::kRendezvous || is_pausing() || cannot_start_) {
    return;
  }
  EndQuarantines(out);
  const int count = membership_.usable();
  switch (
      rendezvous_.Consider({count, membership_.AwaitsLeaseDecision(), formations_ == 0}, out.now)) {
    case Rendezvous::Verdict::kTooFew:
      SetWaitsForNodes();
      return;
    case Rendezvous::Verdict::kAwaitLeases:
      SetReason("enough nodes; waiting for a silent one to reconnect or its lease to expire");
      return;
    case Rendezvous::Verdict::kLastCall:
      SetReason("last call: " + std::to_string(count) + " nodes are enough, up to " +
                std::to_string(spec_.max_nodes) + " may join");
      return;
    case Rendezvous::Verdict::kComplete:
      break;
  }
  if (place_.IsSure(out.now)) {
    FormWorld(membership_.Choose(membership_.Eligible()), out);
  } else {
    CheckPlace(out);
    SetReason("enough nodes; " + place_.Question());
  }
}

void JobMachine::FormWorld(const std::vector<Candidate>& chosen, Out& out) {
  generation_floor_ = Generation(std::max(generation(), generation_floor_).value() + 1);
  const WorldNumbers numbers{
      generation_floor_, budgets_.restarts_used,       spec_.max_restarts,
      spec_.launch_id,   budgets_.worlds_of_attempt++, spec_.earlier_restarts};
  ++formations_;
  rendezvous_.End();
  TellOfNeeded(chosen, out);
  Send(world_.Form(chosen, numbers, out.now), out);
  for (const auto& member : world_.members()) {
    membership_.MakeMember(member->incarnation, member->assignment.group_rank);
  }
  out.effects.news.emplace_back(
      job::WorldFormed{generation(), NodesOfWorld(), world_.world_size()});
  SetReason("forming generation " + std::to_string(generation().value()) + " of " +
            std::to_string(NodesOfWorld()) + " nodes, " + std::to_string(world_.world_size()) +
            " workers");
}

void JobMachine::MaybeCommit(Out& out) {
  if (phase() != Phase::kPreparing || world_.IsAwaited()) {
    return;
  }
  if (place_.IsSure(out.now)) {
    CommitWorld(out);
    return;
  }
  CheckPlace(out);
  SetReason("all nodes are prepared; " + place_.Question());
}

void JobMachine::CommitWorld(Out& out) {
  membership_.ForgetLost();
  membership_.JobRuns(out.now);
  Send(world_.Commit(out.now), out);
  out.effects.news.emplace_back(job::WorldCommitted{generation(), world_.store()});
  SetReason("starting generation " + std::to_string(generation().value()));
}

void JobMachine::RestartRendezvous(Duration pause, Out& out) {
  if (pause > Duration{}) {
    SetReason("pausing for " + Seconds(pause) + " before restart " +
              std::to_string(budgets_.restarts_used) + " of " + std::to_string(spec_.max_restarts) +
              " (--restart-backoff)");
  }
  TellDrainedToLeave(out);
  rendezvous_.Begin(pause, out.now);
  MaybeForm(out);
}

void JobMachine::OnJoinTimeout(Out& out) {
  if (cannot_start_) {
    cannot_start_at_ = out.now;
    MaybeFinishCannotStart(out);
    return;
  }
  out.changed = true;
  if (membership_.eligible() >= spec_.min_nodes) {
    OnJoinTimeoutOfEnough(out);
    return;
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(spec_.join_timeout).count();
  Finish(job::EndedBy(CauseKind::kJoinTimeout,
                      "too few nodes within " + std::to_string(seconds) +
                          " s: " + membership_.Missing(membership_.Eligible()),
                      world_),
         out);
}

/// They need not wait for anybody else any more. Who was asked about the place a moment ago may
/// answer.
void JobMachine::OnJoinTimeoutOfEnough(Out& out) {
  const bool is_news = rendezvous_.EndJoining();
  MaybeForm(out);
  if (phase() != Phase::kRendezvous) {
    return;
  }
  if (is_news && awaits_place() && out.now < place_.AnswerDue()) {
    rendezvous_.WaitOnUntil(place_.AnswerDue());
  } else {
    GiveUpPlace(out);
  }
}

// --- Growing

bool JobMachine::MayGrow() const {
  return (phase() == Phase::kRunning || phase() == Phase::kPreparing) &&
         NodesOfWorld() < spec_.max_nodes && !world_.HasAnySucceeded() && !place_.is_lost();
}

void JobMachine::MaybeGrow(Out& out) {
  const int joiners = MayGrow() ? membership_.wanted() : 0;
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
      MayGrow() ? membership_.Wanted() : std::vector<Incarnation>{};
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

// --- Stopping

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

void JobMachine::FinishStop(Out& out) {
  FSDPRUN_CHECK(!world_.IsAwaited(), "every member has stopped");
  out.effects.news.emplace_back(job::WorldStopped{generation(), world_.failures().RootKind()});
  JudgeWorld(out);
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

/// What follows the world that is being stopped, as far as that is known by now.
job::Recovery JobMachine::WhatFollows(bool is_done, MonoTime now) const {
  return Recover({.kind = world_.stop().kind,
                  .is_done = is_done,
                  .is_permanent = world_.failures().HasPermanent(),
                  .is_final_hang = spec_.hang_ends_job && world_.failures().HasHang(),
                  .is_stopped_by_operator = operator_signal_.has_value(),
                  .is_place_lost = place_.is_lost(),
                  .ran_for = world_.RanFor(now)},
                 budgets_, spec_);
}

/// A scheduler's signal came when nothing but the end was left to do: another run would have
/// nothing to do at all.
bool JobMachine::HasDoneAllSteps() const {
  return operator_signal_ && !spec_.signalled_together.empty() && world_.HasDoneAllSteps();
}

// --- The end

void JobMachine::Finish(JobOutcome outcome, Out& out) {
  outcome.left_out = DescribeLeftOut();
  ending_.Decide(std::move(outcome), world_, budgets_, out.now);
  world_.End();
  growth_.Cancel();
  place_.Withdraw();
  SetReason(ending_.outcome()->reason);
  for (Node& node : membership_.nodes()) {
    SendTo(node, Generation{}, ReleaseOf(node), out);
    membership_.SetState(node, NodeState::kReleased);
  }
  MaybeSendFinish(out);
}

void JobMachine::MaybeSendFinish(Out& out) {
  if (phase() != Phase::kReleasing || !membership_.nodes().empty()) {
    return;
  }
  ending_.Finish();
  out.effects.news.emplace_back(job::JobFinished{*outcome()});
}

}  // namespace fsdprun
