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
  Finish(job::EndedBy(CauseKind::kJoinTimeout,
                      "too few nodes within " + std::to_string(seconds) +
                          " s: " + membership_.Missing(eligible),
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

void JobMachine::Finish(JobOutcome outcome, Out& out) {
  ending_.Decide(std::move(outcome), world_, budgets_, out.now);
  world_.End();
  growth_.Cancel();
  place_.Withdraw();
  SetReason(ending_.outcome()->reason);
  for (Node& node : membership_.nodes()) {
    SendTo(node, Generation{}, ending_.ReleaseOf(node), out);
    node.state = NodeState::kReleased;
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
