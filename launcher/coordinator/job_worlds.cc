#include <algorithm>
#include <csignal>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "launcher/coordinator/job_machine_internal.h"
#include "launcher/coordinator/rank_assignment.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

// --- Forming

void JobMachine::MaybeForm(Out& out) {
  if (phase() != Phase::kRendezvous || is_pausing() || cannot_start_) {
    return;
  }
  std::vector<Incarnation> eligible = membership_.Eligible();
  const int count = static_cast<int>(eligible.size());
  switch (
      rendezvous_.Consider({count, membership_.AwaitsLeaseDecision(), formations_ == 0}, out.now)) {
    case Rendezvous::Verdict::kTooFew:
      SetReason("waiting for nodes: " + membership_.Missing(eligible));
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
    FormWorld(membership_.Choose(std::move(eligible)), out);
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
  Send(world_.Form(chosen, numbers, out.now), out);
  for (const World::Member& member : world_.members()) {
    membership_.MakeMember(member.incarnation, member.assignment.group_rank);
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
  Send(world_.Commit(out.now), out);
  SetReason("starting generation " + std::to_string(generation().value()));
}

void JobMachine::RestartRendezvous(Duration pause, Out& out) {
  if (pause > Duration{}) {
    SetReason("pausing for " + Seconds(pause) + " before restart " +
              std::to_string(budgets_.restarts_used) + " of " + std::to_string(spec_.max_restarts) +
              " (--restart-backoff)");
  }
  rendezvous_.Begin(pause, out.now);
  MaybeForm(out);
}

// --- The end

void JobMachine::OnJoinTimeout(Out& out) {
  if (cannot_start_) {
    cannot_start_at_ = out.now;
    MaybeFinishCannotStart(out);
    return;
  }
  std::vector<Incarnation> eligible = membership_.Eligible();
  out.changed = true;
  if (static_cast<int>(eligible.size()) >= spec_.min_nodes) {
    OnJoinTimeoutOfEnough(out);
    return;
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(spec_.join_timeout).count();
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.reason =
      "too few nodes within " + std::to_string(seconds) + " s: " + membership_.Missing(eligible);
  Failure root;
  root.kind = CauseKind::kJoinTimeout;
  root.generation = generation();
  root.what = outcome.reason;
  outcome.failure = ReportAfterFailures(std::move(root));
  Finish(std::move(outcome), out);
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

/// `root` has ended the job; what failed in its last world came before.
FailureReport JobMachine::ReportAfterFailures(Failure root) const {
  FailureReport report{std::move(root), {}, 0, world_.failures().collateral()};
  if (!world_.failures().empty()) {
    const FailureReport before = world_.failures().Report();
    report.others.push_back(before.root);
    report.other_failures = 1 + before.other_failures;
    report.collateral = before.collateral;
  }
  return report;
}

void JobMachine::FinishSucceeded(Out& out) {
  JobOutcome outcome;
  outcome.reason = "all " + std::to_string(world_.world_size()) + " workers exited with 0";
  Finish(std::move(outcome), out);
}

/// `when` ends the sentence that says by what.
void JobMachine::FinishStoppedByOperator(const std::string& when, Out& out) {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kStoppedBySignal;
  outcome.exit_code = 1;
  outcome.signal = *operator_signal_;
  outcome.reason = "stopped by signal " + std::to_string(*operator_signal_) + when;
  outcome.grace_cut_short = operator_hurries_;
  Finish(std::move(outcome), out);
}

void JobMachine::FinishFailed(const std::string& why, Out& out) {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  if (world_.failures().empty()) {
    // Only collateral deaths were recorded: a worker died of a signal that its own node had sent
    // without an order of ours.
    Failure failure;
    failure.generation = generation();
    failure.what = world_.stop().why;
    outcome.failure = FailureReport{std::move(failure), {}, 0, world_.failures().collateral()};
  } else {
    outcome.failure = world_.failures().Report();
  }
  const Failure& root = outcome.failure->root;
  outcome.reason =
      root.what + (root.worker ? " on node " + root.node_name : std::string()) + "; " + why;
  Finish(std::move(outcome), out);
}

void JobMachine::FinishReplaced(Out& out) {
  Failure failure;
  failure.kind = CauseKind::kNodeLost;
  failure.generation = generation();
  failure.what = place_.lost_why();
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.reason = place_.lost_why();
  outcome.failure = ReportAfterFailures(std::move(failure));
  Finish(std::move(outcome), out);
}

int JobMachine::ReleaseCode(const Node& node) const {
  const bool took_part = node.group_rank >= 0;
  const bool no_world =
      outcome_->failure && (outcome_->failure->root.kind == CauseKind::kJoinTimeout ||
                            outcome_->failure->root.kind == CauseKind::kCannotStart);
  return took_part || no_world || node.leaving ? outcome_->exit_code : 0;
}

/// Once the outcome is decided.
ReleaseAgent JobMachine::Release(int code) const {
  return {code, outcome_->reason, !IsEndOfWorkers(*outcome_)};
}

void JobMachine::Finish(JobOutcome outcome, Out& out) {
  FSDPRUN_CHECK(!outcome_, "a job ends once");
  outcome.restarts_used = budgets_.restarts_used;
  outcome.max_restarts = spec_.max_restarts;
  outcome.generation = generation();
  if (outcome.kind == OutcomeKind::kStoppedBySignal && !world_.failures().empty()) {
    outcome.failure = world_.failures().Report();
  }
  outcome.store = world_.store();
  outcome.ends = world_.ends();
  if (spec_.exits_as_worker) {
    outcome.exit_code = ExitCodeOfCause(outcome);
  }
  outcome_ = std::move(outcome);
  world_.End();
  release_deadline_ = out.now + spec_.release_timeout;
  growth_.Cancel();
  place_.Withdraw();
  SetReason(outcome_->reason);
  for (Node& node : membership_.nodes()) {
    const int code = ReleaseCode(node);
    released_codes_[node.info.incarnation] = code;
    SendTo(node, Generation{}, Release(code), out);
    node.state = NodeState::kReleased;
  }
  MaybeSendFinish(out);
}

void JobMachine::MaybeSendFinish(Out& out) {
  if (phase() != Phase::kReleasing || !membership_.nodes().empty()) {
    return;
  }
  is_finished_ = true;
  release_deadline_ = MonoTime::max();
  out.effects.news.emplace_back(job::JobFinished{*outcome_});
}

}  // namespace fsdprun
