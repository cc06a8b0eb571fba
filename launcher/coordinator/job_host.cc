// What the launcher that hosts the job says.

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::Phase;

void JobMachine::Handle(const job::NoSuccessor& what, Out& out) {
  out.changed = false;
  membership_.ExpectNoSuccessor(what.node_name, out.now);
}

// --- Signals

void JobMachine::Handle(const job::OperatorStop& stop, Out& out) {
  if (outcome()) {
    return;
  }
  const bool again = operator_signal_.has_value() && !std::exchange(agent_told_signal_, false);
  if (!operator_signal_.has_value()) {
    operator_signal_ = stop.signal;
    place_.Withdraw();
  }
  StopForOperator(again, out);
}

void JobMachine::StopForOperator(bool again, Out& out) {
  const std::string why = "stopped by signal " + std::to_string(*operator_signal_);
  switch (phase()) {
    case Phase::kRendezvous:
      Finish(job::StoppedBySignal(*operator_signal_,
                                  is_pausing() ? " before a restart" : " while waiting for nodes",
                                  operator_hurries_),
             out);
      return;
    case Phase::kPreparing:
    case Phase::kRunning:
    case Phase::kStopping:
      if (again) {
        operator_hurries_ = true;
        BeginStop(StopKind::kOperator, *operator_signal_, Duration{}, why, out);
      } else {
        Drain(StopKind::kOperator, *operator_signal_, why, out);
      }
      return;
    case Phase::kReleasing:
    case Phase::kFinished:
      return;
  }
}

void JobMachine::Handle(const job::SignalForWorkers& signal, Out& out) {
  out.changed = false;
  if (phase() != Phase::kRunning) {
    out.effects.news.emplace_back(job::Warned{"signal " + std::to_string(signal.signal) +
                                              " came while no worker ran; it was not passed on"});
    return;
  }
  Send(world_.PassToWorkers(signal.signal), out);
}

void JobMachine::Handle(const job::RestartAsked&, Out& out) {
  if (phase() == Phase::kPreparing || phase() == Phase::kRunning) {
    Drain(StopKind::kMembership, SIGTERM, "restarted by an operator", out);
  } else {
    out.changed = false;
  }
}

void JobMachine::Handle(const job::WorldHangs& hangs, Out& out) {
  if (phase() != Phase::kRunning || hangs.generation != generation()) {
    out.changed = false;
    return;
  }
  const World::Member* member = MemberWith(hangs.rank);
  Failure failure;
  failure.kind = CauseKind::kWorkerHung;
  failure.generation = generation();
  failure.what = hangs.what;
  if (member != nullptr) {
    failure = FailureOf(membership_.nodes().At(member->incarnation), failure.kind, hangs.what);
  }
  RecordFailure(std::move(failure), out.now - hangs.lasted, out);
  Abort(hangs.what, out);
}

/// nullptr if no member has the rank.
const World::Member* JobMachine::MemberWith(int rank) const {
  const auto& members = world_.members();
  const auto it = std::find_if(members.begin(), members.end(), [rank](const auto& member) {
    const RankAssignment& place = member->assignment;
    return rank >= place.rank_offset && rank < place.rank_offset + place.local_world_size;
  });
  return it == members.end() ? nullptr : it->get();
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

// --- The place, see HostPlace

void JobMachine::CheckPlace(Out& out) {
  if (place_.Ask(out.now)) {
    out.effects.actions.emplace_back();
  }
}

void JobMachine::Handle(const job::PlaceChecked& checked, Out& out) {
  switch (place_.Checked(checked.at)) {
    case HostPlace::Found::kUnasked:
      ++stale_dropped_;
      out.changed = false;
      return;
    case HostPlace::Found::kOutdated:
      CheckPlace(out);
      return;
    case HostPlace::Found::kSure:
      GoOnHere(out);
      return;
  }
}

void JobMachine::Handle(const job::PlaceUnknown& unknown, Out& out) {
  if (place_.NotFound(unknown.why)) {
    GoOnHere(out);
  }
}

/// With what waits for the place.
void JobMachine::GoOnHere(Out& out) {
  MaybeForm(out);
  MaybeGrow(out);
  MaybeCommit(out);
}

void JobMachine::Handle(const job::HostReplaced& replaced, Out& out) {
  if (!outcome() && !operator_signal_ && !place_.is_lost()) {
    place_.Lose(replaced.why);
    EndWithoutPlace(out);
  }
}

/// The time to wait is over, and nothing but the place is missing.
void JobMachine::GiveUpPlace(Out& out) {
  place_.GiveUp();
  EndWithoutPlace(out);
}

/// Nothing is begun here any more. What is being drained may end what it does.
void JobMachine::EndWithoutPlace(Out& out) {
  growth_.Cancel();
  TurnSparesAway(out);
  if (phase() == Phase::kRendezvous) {
    Finish(OutcomeWithoutPlace(), out);
  } else if (phase() == Phase::kPreparing) {
    BeginStop(StopKind::kMembership, SIGTERM, GraceOf(StopKind::kFailure, spec_), place_.lost_why(),
              out);
  }
}

JobOutcome JobMachine::OutcomeWithoutPlace() const {
  return job::EndedBy(CauseKind::kNodeLost, place_.lost_why(), world_);
}

std::string JobMachine::NoMoreNodes() const {
  return "this job takes no more nodes: " + place_.lost_why();
}

/// Who has had no part in the last world waits in vain, but may find the other host.
void JobMachine::TurnSparesAway(Out& out) {
  if (!place_.is_lost()) {
    return;
  }
  for (const Incarnation stranger : membership_.Strangers()) {
    out.effects.messages.push_back(
        ToAgent{stranger, Generation{}, RejectAgent{NoMoreNodes(), /*rejoin=*/false}});
    membership_.Dismiss(stranger);
  }
}

}  // namespace fsdprun
