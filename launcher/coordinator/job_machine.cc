#include "launcher/coordinator/job_machine.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

std::string_view job::PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kRendezvous:
      return "rendezvous";
    case Phase::kPreparing:
      return "preparing";
    case Phase::kRunning:
      return "running";
    case Phase::kStopping:
      return "stopping";
    case Phase::kReleasing:
      return "releasing";
    case Phase::kFinished:
      return "finished";
  }
  return "?";
}

Phase JobMachine::phase() const {
  if (outcome()) {
    return ending_.is_finished() ? Phase::kFinished : Phase::kReleasing;
  }
  switch (world_.phase()) {
    case World::Phase::kNone:
      return Phase::kRendezvous;
    case World::Phase::kPreparing:
      return Phase::kPreparing;
    case World::Phase::kRunning:
      return Phase::kRunning;
    case World::Phase::kStopping:
      return Phase::kStopping;
  }
  return Phase::kRendezvous;
}

AdmitAgent AdmissionOf(const JobSpec& spec) {
  return AdmitAgent{spec.dead_after, JobTerms{spec.min_nodes, spec.max_nodes, spec.max_restarts,
                                              spec.join_timeout, spec.last_call}};
}

JobMachine::JobMachine(const JobSpec& spec)
    : spec_(spec),
      membership_(spec_),
      world_(spec_),
      place_(spec_),
      agent_signals_(spec_),
      rendezvous_(spec_),
      growth_(spec_),
      ending_(spec_) {
  FSDPRUN_CHECK(spec_.min_nodes >= 1 && spec_.min_nodes <= spec_.max_nodes, "1 <= min <= max");
  FSDPRUN_CHECK(spec_.max_restarts >= 0, "the restart budget is a count");
  FSDPRUN_CHECK(spec_.suspect_after < spec_.dead_after, "suspicion comes before death");
  FSDPRUN_CHECK(spec_.restart_backoff <= spec_.max_restart_backoff, "the longest pause is longest");
}

job::Effects JobMachine::Step(const job::Event& event, MonoTime now) {
  job::Effects effects;
  Step(event, now, effects);
  return effects;
}

void JobMachine::Step(const job::Event& event, MonoTime now, job::Effects& effects) {
  before_ = {generation(), budgets_.restarts_used, budgets_.membership_changes, formations_,
             outcome().has_value()};
  effects.persist.reset();
  effects.messages.clear();
  effects.news.clear();
  Out out{effects, now, true};
  if (!begun_) {
    begun_ = true;
    rendezvous_.Begin(Duration{}, now);
    SetReason("waiting for nodes: " + membership_.Missing({}));
  }
  ForgiveStall(now, effects);
  std::visit([&](const auto& e) { Handle(e, out); }, event);
  if (now >= membership_.next_scan()) {
    ScanLeases(out);
  }
  revision_ += out.changed ? 1 : 0;
  promised_wake_ = NextWake();
  effects.wake_at = promised_wake_;
  if (HasRecordChanged()) {
    effects.persist = {generation(), budgets_, outcome().has_value()};
  }
}

bool JobMachine::HasRecordChanged() const {
  return generation() != before_.generation || outcome().has_value() != before_.outcome_decided ||
         budgets_.restarts_used != before_.restarts_used ||
         budgets_.membership_changes != before_.membership_changes;
}

/// What was due while the coordinator itself did not run may have been answered: the answers lie
/// unread.
void JobMachine::ForgiveStall(MonoTime now, job::Effects& effects) {
  if (promised_wake_ == MonoTime::max() || now - promised_wake_ <= kStallTolerance) {
    return;
  }
  const Duration lateness = now - promised_wake_;
  effects.news.emplace_back(job::Stalled{lateness});
  membership_.ForgiveStall(now);
  cannot_start_at_ =
      cannot_start_at_ == MonoTime::max() ? cannot_start_at_ : cannot_start_at_ + lateness;
  ending_.PutOffDeadline(lateness);
  rendezvous_.PutOff(lateness);
  world_.PutOffDeadline(lateness);
}

void JobMachine::ScanLeases(Out& out) {
  const Leases::Findings findings = membership_.ScanLeases(out.now);
  out.changed |= findings.has_changes;
  if (!findings.notice.empty()) {
    SetReason(findings.notice);
  }
  for (const Leases::Lapse& lapse : findings.lapses) {
    LoseNode(lapse.incarnation, CauseKind::kNodeLost, lapse.what, out);
  }
}

// --- Events

void JobMachine::Handle(const job::TimerDue&, Out& out) {
  out.changed = false;
  if (out.now >= world_.deadline()) {
    OnOverdue(out);
  }
  if (ending_.EndWaitIfDue(out.now)) {
    out.changed = true;
    membership_.DismissAll();
    MaybeSendFinish(out);
  }
  OnDelaysDue(out);
  if (phase() != Phase::kRendezvous) {
    return;
  }
  if (rendezvous_.EndLastCallIfDue(out.now)) {
    out.changed = true;
    MaybeForm(out);
  }
  if (phase() == Phase::kRendezvous && out.now >= rendezvous_.join_deadline()) {
    OnJoinTimeout(out);
  }
}

void JobMachine::Handle(const FromAgent& envelope, Out& out) {
  std::visit([&](const auto& message) { On(message, envelope, out); }, envelope.message);
}

void JobMachine::Handle(const job::AgentStreamLost& lost, Out& out) {
  Node* node = membership_.nodes().Find(lost.incarnation);
  if (node == nullptr || !node->connected) {
    out.changed = false;
    return;
  }
  if (node->state == NodeState::kReleased) {
    membership_.Dismiss(lost.incarnation);
    MaybeSendFinish(out);
    return;
  }
  membership_.LostStream(*node, out.now);
}

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

// --- Messages

void JobMachine::On(const AgentHeartbeat& heartbeat, const FromAgent& envelope, Out& out) {
  out.changed = false;
  Node* node = membership_.nodes().Find(envelope.incarnation);
  if (node == nullptr) {
    ++stale_dropped_;
    out.effects.messages.push_back(
        ToAgent{envelope.incarnation, Generation{},
                RejectAgent{"this agent was declared lost; it may join again", true}});
    return;
  }
  if (membership_.Heard(*node, out.now)) {
    out.changed = true;
    MaybeForm(out);
    MaybeGrow(out);
  }
  const bool is_first = node->IsMember() && node->group_rank == 0;
  if (is_first && envelope.generation == generation() && heartbeat.progress.step >= 0) {
    world_.NoteProgress(heartbeat.progress);
  }
}

void JobMachine::On(const AgentPrepared& prepared, const FromAgent& envelope, Out& out) {
  World::Member* member = FindSender(envelope);
  if (member == nullptr) {
    return;
  }
  switch (world_.Prepared(*member, prepared, out.now)) {
    case World::Answered::kNothing:
    case World::Answered::kOne:
      return;
    case World::Answered::kAll:
      MaybeCommit(out);
      return;
    case World::Answered::kNoStore:
      RecordFailure(FailureOf(envelope, CauseKind::kPrepareFailed,
                              "group rank 0 is prepared but names no store endpoint"),
                    out.now, out);
      Abort("no store endpoint", out);
      return;
  }
}

void JobMachine::On(const AgentStarted&, const FromAgent& envelope, Out&) {
  World::Member* member = FindSender(envelope);
  if (member != nullptr && world_.Started(*member) == World::Answered::kAll) {
    SetReason("running generation " + std::to_string(generation().value()) + ": " +
              std::to_string(world_.world_size()) + " workers on " +
              std::to_string(world_.members().size()) + " nodes");
  }
}

void JobMachine::On(const WorkerExited& exited, const FromAgent& envelope, Out& out) {
  World::Member* member = FindSender(envelope);
  if (member == nullptr) {
    return;
  }
  switch (world_.WorkerEnded(*member, exited.exit)) {
    case World::Ended::kNothing:
    case World::Ended::kWell:
      return;
    case World::Ended::kAllWell:
      Finish(job::Succeeded(world_), out);
      return;
    case World::Ended::kFailed:
      OnFailedWorker(exited, envelope, out);
      return;
  }
}

void JobMachine::OnFailedWorker(const WorkerExited& exited, const FromAgent& envelope, Out& out) {
  Failure failure = FailureOf(envelope, CauseKind::kWorkerFailed, DescribeExit(exited.exit));
  failure.worker = exited.exit;
  const std::string what = failure.what + " on " + failure.node_name;
  const bool is_own_failure = RecordFailure(std::move(failure), out.now - exited.age, out);
  if (phase() == Phase::kRunning || is_own_failure) {
    Abort(what, out);
  }
}

void JobMachine::On(const NodeFaulted& fault, const FromAgent& envelope, Out& out) {
  World::Member* member = FindSender(envelope);
  if (fault.kind == CauseKind::kNodeWedged &&
      membership_.nodes().Find(envelope.incarnation) != nullptr) {
    LoseNode(envelope.incarnation, CauseKind::kNodeWedged, fault.what, out);
    return;
  }
  if (member == nullptr || member->state == World::MemberState::kStopped) {
    return;
  }
  RecordFailure(FailureOf(envelope, fault.kind, fault.what), out.now - fault.age, out);
  Abort(member->name + ": " + fault.what, out);
}

void JobMachine::On(const WorkersStopped&, const FromAgent& envelope, Out& out) {
  Node* cleaning = membership_.nodes().Find(envelope.incarnation);
  if (cleaning != nullptr && cleaning->state == NodeState::kCleaning) {
    if (envelope.generation == cleaning->held) {
      BecomeSpare(*cleaning, out);
    }
    return;
  }
  World::Member* member = FindSender(envelope);
  if (member != nullptr && world_.Stopped(*member) == World::Answered::kAll) {
    FinishStop(out);
  }
}

void JobMachine::On(const AgentLeft& left, const FromAgent& envelope, Out& out) {
  Node* node = membership_.nodes().Find(envelope.incarnation);
  if (node == nullptr) {
    ++stale_dropped_;
    return;
  }
  if (left.signal != 0 && !node->leaving) {
    OnSignalToAgent(*node, left.signal, out);
  }
  if (node->state == NodeState::kReleased) {
    if (!left.workers_running) {
      membership_.Dismiss(envelope.incarnation);
      MaybeSendFinish(out);
    }
    return;
  }
  node->leaving = true;
  const std::string what =
      "left" + (left.signal != 0 ? " on signal " + std::to_string(left.signal) : std::string());
  if (!left.workers_running) {
    LoseNode(envelope.incarnation, CauseKind::kNodeLost, what, out);
  } else if (phase() == Phase::kRunning && node->IsMember()) {
    Drain(StopKind::kMembership, SIGTERM, node->info.name + " " + what, out);
  }
}

// --- Helpers

/// The sender, if it is a member and the message is about the current generation; see Note [Fencing
/// by generation].
World::Member* JobMachine::FindSender(const FromAgent& envelope) {
  World::Member* member = world_.FindSender(envelope);
  stale_dropped_ += member == nullptr ? 1 : 0;
  return member;
}

Failure JobMachine::FailureOf(const Node& node, CauseKind kind, std::string what) const {
  Failure failure;
  failure.kind = kind;
  failure.generation = generation();
  failure.node_name = node.info.name;
  failure.node_address = node.info.address;
  failure.group_rank = node.group_rank;
  failure.what = std::move(what);
  return failure;
}

Failure JobMachine::FailureOf(const FromAgent& envelope, CauseKind kind, std::string what) const {
  return FailureOf(membership_.nodes().At(envelope.incarnation), kind, std::move(what));
}

/// False if it is collateral of a stop.
bool JobMachine::RecordFailure(Failure failure, MonoTime since, Out& out) {
  return world_.failures().Add(std::move(failure), out.now, since);
}

void JobMachine::SendTo(const Node& node, Generation g, CoordinatorMessage message, Out& out) {
  out.effects.messages.push_back(ToAgent{node.info.incarnation, g, std::move(message)});
}

void JobMachine::Send(World::Orders orders, Out& out) {
  out.effects.messages.insert(out.effects.messages.end(), std::make_move_iterator(orders.begin()),
                              std::make_move_iterator(orders.end()));
}

void JobMachine::SetReason(std::string reason) { reason_ = std::move(reason); }

MonoTime JobMachine::NextWake() const {
  if (ending_.is_finished()) {
    return MonoTime::max();
  }
  MonoTime wake =
      std::min({membership_.next_scan(), world_.deadline(), ending_.deadline(), growth_.due()});
  if (phase() == Phase::kRendezvous) {
    wake = std::min({wake, rendezvous_.NextWake(), cannot_start_at_});
  }
  return wake;
}

}  // namespace fsdprun
