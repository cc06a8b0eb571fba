#include "agent/node/node_machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/node/node_machine_internal.h"
#include "base/check.h"
#include "proto/worker_contract.h"

namespace fsdprun {

namespace {

/// How long the workers may take to die before an agent without a coordinator exits anyway; before
/// that it tells the keeper to end, and with it the workers.
constexpr Duration kExitTimeoutWithoutCoordinator = std::chrono::milliseconds(300);

}  // namespace

std::string_view node::PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "idle";
    case Phase::kPreparing:
      return "preparing";
    case Phase::kPrepared:
      return "prepared";
    case Phase::kSpawning:
      return "spawning";
    case Phase::kRunning:
      return "running";
    case Phase::kStopping:
      return "stopping";
    case Phase::kKilling:
      return "killing";
    case Phase::kWedged:
      return "wedged";
    case Phase::kGone:
      return "gone";
  }
  return "?";
}

NodeMachine::NodeMachine(NodeSpec spec) : contact_(spec), spec_(std::move(spec)) {
  FSDPRUN_CHECK(spec_.node.incarnation.value() != 0, "an agent life needs a random number");
  FSDPRUN_CHECK(spec_.node.local_world_size >= 1, "a node has at least one worker");
}

node::Effects NodeMachine::Step(const node::Event& event, MonoTime now) {
  node::Effects effects;
  Step(event, now, effects);
  return effects;
}

void NodeMachine::Step(const node::Event& event, MonoTime now, node::Effects& effects) {
  effects.Clear();
  Out out{effects, now};
  if (!exited_) {
    ForgiveLateness(now);
    std::visit([&](const auto& e) { Handle(e, out); }, event);
  }
  if (spec_.node.has_successor) {
    KeepRecord(out);
  }
  promised_wake_ = std::max(NextWake(now), now);  // what is due now is not late yet
  effects.wake_at = promised_wake_;
}

// --- Coordinator link

void NodeMachine::Handle(const node::Boot&, Out& out) {
  contact_.Begin(out.now);
  SetReason("connecting to the coordinator at " + contact_.endpoint());
  out.effects.actions.emplace_back(node::StartKeeper{});
  out.effects.actions.emplace_back(node::ReconnectStream{});
}

void NodeMachine::Handle(const node::StreamUp&, Out& out) {
  contact_.StreamUp(out.now);
  SendJoin(out);
}

void NodeMachine::SendJoin(Out& out) {
  SendNow(AgentJoined{spec_.node, highest_seen_, spec_.cannot_run}, generation(), out);
  if (leaving_) {
    // First of all: the exits below are of this agent's own making, and without a stop that is
    // known of they would be taken for failures.
    SendNow(AgentLeft{leaving_->signal, MayHaveProcesses()}, generation(), out);
  }
  for (AgentMessage& report : reports_.Repeat(out.now)) {
    SendNow(std::move(report), generation(), out);
  }
}

void NodeMachine::Handle(const node::CoordinatorMoved& moved, Out&) {
  contact_.Moved(moved.endpoint);
}

void NodeMachine::Handle(const node::StreamLost& lost, Out& out) {
  const Contact::Broken broken = contact_.Break(lost.what);
  if (was_released()) {
    return;  // There is nothing more to hear.
  }
  if (broken.was_admitted) {
    out.effects.news.emplace_back(node::CoordinatorLost{lost.what});
  }
  const Duration delay = contact_.Redial(broken, lost.nothing_listens, out.now);
  if (broken.was_up) {
    std::string before = reason_before_loss_.value_or(reason_);
    SetReason("lost the stream to the coordinator at " + contact_.endpoint() + "; reconnecting");
    reason_before_loss_ = std::move(before);
  }
  out.effects.actions.emplace_back(node::ReconnectStream{delay, contact_.patience()});
}

/// Deadlines of others' answers move by the time that this agent itself did not run: the answers
/// may lie unread. The workers' grace does not, because they did run.
void NodeMachine::ForgiveLateness(MonoTime now) {
  const Duration late = lateness_.At(promised_wake_, now).forgiven;
  if (late == Duration{}) {
    return;
  }
  contact_.ForgiveStall(late);
  for (MonoTime* time : {&wedged_at_, &exit_at_}) {
    *time = *time == MonoTime::max() ? *time : *time + late;
  }
}

void NodeMachine::GiveUpCoordinator(Out& out) {
  Leave(1, contact_.GiveUp(), kExitTimeoutWithoutCoordinator, out);
}

// --- Keeper

void NodeMachine::Handle(const node::KeeperReady&, Out& out) {
  keeper_.Ready(out.now);
  if (phase_ == node::Phase::kPreparing && !prepare_started_) {
    prepare_started_ = true;
    out.effects.actions.emplace_back(node::PrepareNode{assignment_, assignment_.group_rank == 0});
  }
}

void NodeMachine::Handle(const node::KeeperLost& lost, Out& out) {
  const std::optional<Duration> delay = keeper_.Lost(out.now);
  out.effects.news.emplace_back(node::KeeperDied{lost.what});
  switch (phase_) {
    case node::Phase::kIdle:
    case node::Phase::kGone:
      break;
    case node::Phase::kPreparing:
      prepare_started_ = false;  // a new keeper prepares again
      break;
    case node::Phase::kPrepared:
      FailWithoutProcesses(CauseKind::kKeeperDied, "keeper died: " + lost.what, out);
      break;
    case node::Phase::kSpawning:
    case node::Phase::kRunning:
    case node::Phase::kStopping:
    case node::Phase::kKilling:
    case node::Phase::kWedged:
      LoseWorkersWithKeeper(lost.what, out);
      break;
  }
  reports_.KeeperForgets();
  RestartKeeper(delay, lost.what, out);
}

void NodeMachine::LoseWorkersWithKeeper(const std::string& what, Out& out) {
  const int lost = workers_.EndAll();
  if (lost > 0) {
    Fault(CauseKind::kKeeperDied,
          "keeper died (" + what + ") and " + std::to_string(lost) + " worker(s) with it", out);
  }
  phase_ = node::Phase::kKilling;
  kill_at_ = MonoTime::max();
  wedged_at_ = out.now + spec_.kill_wait;
  out.effects.actions.emplace_back(node::KillOrphans{generation()});
}

void NodeMachine::RestartKeeper(std::optional<Duration> delay, const std::string& what, Out& out) {
  if (exited_) {
    return;
  }
  if (!delay) {
    Leave(1,
          "the keeper failed " + std::to_string(keeper_.failures()) +
              " times in a row on this node, last: " + what,
          spec_.kill_wait, out);
    return;
  }
  out.effects.actions.emplace_back(node::StartKeeper{*delay});
}

// --- Generation

void NodeMachine::Handle(const node::LogsAndStoreReady& ready, Out& out) {
  if (IsStale(ready.generation) || phase_ != node::Phase::kPreparing) {
    return;
  }
  phase_ = node::Phase::kPrepared;
  AgentPrepared prepared;
  if (assignment_.group_rank == 0) {
    prepared.store = ready.store;
  }
  SendReport(std::move(prepared), out.now, out);
}

void NodeMachine::Handle(const node::PrepareFailed& failed, Out& out) {
  if (IsStale(failed.generation) || phase_ != node::Phase::kPreparing) {
    return;
  }
  FailWithoutProcesses(CauseKind::kPrepareFailed, failed.what, out);
}

void NodeMachine::FailWithoutProcesses(CauseKind kind, std::string what, Out& out) {
  Fault(kind, std::move(what), out);
  BecomeGone(out);
}

void NodeMachine::Handle(const node::WorkersSpawned& spawned, Out& out) {
  if (IsStale(spawned.generation) || !MayHaveProcesses()) {
    return;
  }
  workers_.Started(spawned.pids);
  out.effects.news.emplace_back(
      node::WorkersStarted{generation(), assignment_.rank_offset, spawned.pids});
  keeper_.HasProvenItself();
  if (phase_ == node::Phase::kSpawning) {
    phase_ = node::Phase::kRunning;
    SetReason("running generation " + std::to_string(generation().value()) + ": ranks " +
              std::to_string(assignment_.rank_offset) + "-" +
              std::to_string(assignment_.rank_offset + assignment_.local_world_size - 1) + " of " +
              std::to_string(assignment_.world_size));
    SendReport(AgentStarted{}, out.now, out);
  }
}

void NodeMachine::Handle(const node::SpawnFailed& failed, Out& out) {
  if (IsStale(failed.generation) || phase_ != node::Phase::kSpawning) {
    return;
  }
  Fault(CauseKind::kSpawnFailed,
        "could not start the worker of local rank " + std::to_string(failed.local_rank) + ": " +
            failed.what,
        out);
  KillGeneration(out);
}

void NodeMachine::Handle(const node::WorkerReaped& reaped, Out& out) {
  if (IsStale(reaped.generation) || !MayHaveProcesses()) {
    return;
  }
  WorkerSet::Death death{reaped.exit, out.now - reaped.age, std::nullopt};
  if (reaped.error_age) {
    death.reported_at = out.now - *reaped.error_age;
  }
  std::optional<WorkerSet::Ended> ended = workers_.End(death);
  if (!ended) {
    return;
  }
  if (progress_changed_) {
    SendHeartbeat(out);  // How far the workers have come tells whether they were done.
  }
  out.effects.news.emplace_back(node::WorkerEnded{generation(), ended->exit});
  const bool is_permanent =
      ended->exit.signal == 0 && contract::IsPermanentExit(ended->exit.exit_code);
  if (IsEndByStop(ended->exit, is_permanent)) {
    NoteEndByStop(std::move(ended->exit));
  } else {
    SendReport(WorkerExited{std::move(ended->exit)}, ended->failed_at, out);
  }
  if (workers_.live() == 0) {
    ReportEndsByStop(out);
  }
}

/// Told in numbers: with the last, or with the next beat.
void NodeMachine::NoteEndByStop(WorkerExit exit) {
  exit.error_message.clear();
  exit.traceback.clear();
  exit.error_json.clear();
  exit.stderr_tail.clear();
  exit.log_path.clear();
  ends_by_stop_.push_back(std::move(exit));
}

void NodeMachine::ReportEndsByStop(Out& out) {
  if (!ends_by_stop_.empty()) {
    SendReport(WorkersEnded{std::exchange(ends_by_stop_, {})}, out.now, out);
  }
}

void NodeMachine::Handle(const node::AllWorkersGone& gone, Out& out) {
  if (IsStale(gone.generation)) {
    return;
  }
  switch (phase_) {
    case node::Phase::kIdle:
    case node::Phase::kPreparing:
    case node::Phase::kPrepared:
    case node::Phase::kSpawning:
    case node::Phase::kGone:
      return;
    case node::Phase::kRunning:
      if (workers_.live() > 0) {
        Fault(CauseKind::kKeeperDied, "workers vanished without an exit status", out);
      }
      break;
    case node::Phase::kStopping:
    case node::Phase::kKilling:
    case node::Phase::kWedged:
      break;
  }
  BecomeGone(out);
}

void NodeMachine::Handle(const node::WorkerProgress& progress, Out&) {
  if (IsStale(progress.generation) ||
      !workers_.NoteStep(progress.local_rank, progress.progress.step)) {
    return;
  }
  if (progress.local_rank == 0) {
    progress_ = progress.progress;
    progress_changed_ = true;
  }
}

void NodeMachine::Handle(const node::OperatorSignal& signal, Out& out) {
  if (leaving_) {
    if (phase_ == node::Phase::kStopping) {
      leaving_->message += "; the workers that were still running were killed at the second signal";
    }
    if (MayHaveProcesses()) {
      KillGeneration(out);
    }
    return;
  }
  leaving_ = {.signal = signal.signal,
              .exit_code = 1,
              .message = "stopped by signal " + std::to_string(signal.signal)};
  SetReason("leaving: " + leaving_->message);
  if (!MayHaveProcesses()) {
    FinishExit(out);
    return;
  }
  SendNow(AgentLeft{signal.signal, true}, generation(), out);
  StopGeneration(signal.signal, spec_.stop_grace, reason_, out);
}

void NodeMachine::Handle(const node::TimerDue&, Out& out) {
  if (out.now >= exit_at_) {
    FinishExit(out);
    return;
  }
  if (out.now >= contact_.deadline()) {
    GiveUpCoordinator(out);
    return;
  }
  if (out.now >= kill_at_) {
    KillGeneration(out);
  }
  if (out.now >= wedged_at_) {
    DeclareWedged(out);
  }
  if (!exited_ && out.now >= contact_.silent_at()) {
    Handle(node::StreamLost{contact_.Silence()}, out);
  }
  if (!exited_ && out.now >= contact_.next_heartbeat()) {
    contact_.HeartbeatIsSent(out.now);
    ReportEndsByStop(out);
    SendHeartbeat(out);
  }
}

void NodeMachine::SendHeartbeat(Out& out) {
  AgentHeartbeat heartbeat{.progress = {}, .asks = contact_.Asks(out.now)};
  if (progress_changed_) {
    progress_changed_ = false;
    heartbeat.progress = progress_;
  }
  SendNow(std::move(heartbeat), generation(), out);
}

}  // namespace fsdprun
