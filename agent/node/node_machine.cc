#include "agent/node/node_machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/node/node_machine_internal.h"
#include "base/check.h"

namespace fsdprun {

namespace {

constexpr Duration kAdmitTimeout = std::chrono::seconds(10);
constexpr Duration kFirstRetry = std::chrono::milliseconds(10);
constexpr Duration kRetryMax = std::chrono::milliseconds(100);
constexpr Duration kRetryMaxBeforeAdmission = std::chrono::seconds(1);
constexpr Duration kKeeperRetry = std::chrono::milliseconds(100);
/// A keeper that ran this long was healthy: its death resets the failure count.
constexpr Duration kKeeperHealthyAfter = std::chrono::seconds(10);
constexpr int kKeeperFailuresMax = 5;
/// How long the workers may take to die before an agent without a coordinator exits anyway; its
/// exit ends the keeper, and with it the workers.
constexpr Duration kExitTimeoutWithoutCoordinator = std::chrono::milliseconds(300);

/// A worker that ran on for longer after it had written its error file has handled that error.
constexpr Duration kLongestWayOut = std::chrono::seconds(10);

std::string Seconds(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s"
                        : std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

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

NodeMachine::NodeMachine(NodeSpec spec)
    : spec_(std::move(spec)),
      node_lease_(spec_.node_lease),
      heartbeat_interval_(spec_.heartbeat_interval),
      coordinator_grace_(spec_.coordinator_grace) {
  FSDPRUN_CHECK(spec_.node.incarnation.value() != 0, "an agent life needs a random number");
  FSDPRUN_CHECK(spec_.node.local_world_size >= 1, "a node has at least one worker");
}

node::Effects NodeMachine::Step(const node::Event& event, MonoTime now) {
  node::Effects effects;
  Step(event, now, effects);
  return effects;
}

void NodeMachine::Step(const node::Event& event, MonoTime now, node::Effects& effects) {
  effects.actions.clear();
  Out out{effects, now};
  if (!exited_) {
    ForgiveStall(now);
    std::visit([&](const auto& e) { Handle(e, out); }, event);
  }
  promised_wake_ = std::max(NextWake(now), now);  // what is due now is not late yet
  effects.reason = reason_;
  effects.wake_at = promised_wake_;
}

// --- Coordinator link

void NodeMachine::Handle(const node::Boot&, Out& out) {
  stream_deadline_ = out.now + spec_.connect_timeout;
  SetReason("connecting to the coordinator at " + spec_.coordinator_endpoint);
  out.effects.actions.emplace_back(node::StartKeeper{});
  out.effects.actions.emplace_back(node::ReconnectStream{});
}

void NodeMachine::Handle(const node::StreamUp&, Out& out) {
  stream_up_ = true;
  admitted_ = false;
  if (ever_admitted_) {
    refused_since_ = MonoTime::max();
    stream_deadline_ = std::max(DeadlineWithoutCoordinator(), out.now + kAdmitTimeout);
  }
  SendJoin(out);
}

void NodeMachine::SendJoin(Out& out) {
  SendNow(AgentJoined{spec_.node, highest_seen_, spec_.cannot_run}, generation(), out);
  if (leaving_) {
    // First of all: the exits below are of this agent's own making, and without a stop that is
    // known of they would be taken for failures.
    SendNow(AgentLeft{operator_signal_, MayHaveProcesses()}, generation(), out);
  }
  for (const Report& report : reports_) {
    SendAged(report, out);
  }
}

void NodeMachine::Handle(const node::StreamLost& lost, Out& out) {
  const bool was_admitted = admitted_;
  const bool was_up = stream_up_;
  stream_up_ = false;
  admitted_ = false;
  next_heartbeat_ = MonoTime::max();
  link_error_ = lost.what;
  if (released_) {
    return;  // There is nothing more to hear.
  }
  if (ever_admitted_) {
    coordinator_lost_at_ = was_admitted ? out.now : coordinator_lost_at_;
    refused_since_ = lost.nothing_listens ? std::min(refused_since_, out.now) : MonoTime::max();
    stream_deadline_ = DeadlineWithoutCoordinator();
  }
  if (was_up) {
    reconnect_delay_ = {};
    std::string before = reason_before_loss_.value_or(reason_);
    SetReason("lost the stream to the coordinator at " + spec_.coordinator_endpoint +
              "; reconnecting");
    reason_before_loss_ = std::move(before);
  } else {
    reconnect_delay_ = std::clamp(reconnect_delay_ * 2, kFirstRetry,
                                  ever_admitted_ ? kRetryMax : kRetryMaxBeforeAdmission);
  }
  out.effects.actions.emplace_back(node::ReconnectStream{reconnect_delay_});
}

/// A coordinator that is silent may only be stopped, and its nodes must not suffer for that; one
/// whose address refuses connections has ended.
MonoTime NodeMachine::DeadlineWithoutCoordinator() const {
  const MonoTime silent = coordinator_lost_at_ + coordinator_grace_;
  return refused_since_ == MonoTime::max()
             ? silent
             : std::min(silent, refused_since_ + spec_.coordinator_ended_grace);
}

/// Deadlines of others' answers move by the time that this agent itself did not run: the answers
/// may lie unread. The workers' grace does not, because they did run.
void NodeMachine::ForgiveStall(MonoTime now) {
  if (promised_wake_ == MonoTime::max() || now - promised_wake_ <= kStallTolerance) {
    return;
  }
  const Duration late = now - promised_wake_;
  for (MonoTime* time :
       {&stream_deadline_, &wedged_at_, &exit_at_, &coordinator_lost_at_, &refused_since_}) {
    *time = *time == MonoTime::max() ? *time : *time + late;
  }
}

void NodeMachine::GiveUpCoordinator(Out& out) {
  stream_deadline_ = MonoTime::max();
  if (ever_admitted_) {
    const bool has_ended = refused_since_ != MonoTime::max();
    Leave(1,
          "lost the coordinator at " + spec_.coordinator_endpoint + " (" + link_error_ + ") and " +
              (has_ended ? "nothing listens there any more: its launcher has ended"
                         : "could not reach it again within " + Seconds(coordinator_grace_)) +
              "; the workers of this node were ended. Look at the launcher on that host.",
          kExitTimeoutWithoutCoordinator, out);
    return;
  }
  Leave(1,
        "could not join through the coordinator at " + spec_.coordinator_endpoint + " within " +
            Seconds(spec_.connect_timeout) + " (" + link_error_ +
            "); check --rdzv-endpoint and that the launcher on that host is running",
        kExitTimeoutWithoutCoordinator, out);
}

// --- Keeper

void NodeMachine::Handle(const node::KeeperReady&, Out& out) {
  keeper_ready_ = true;
  keeper_ready_at_ = out.now;
  if (phase_ == node::Phase::kPreparing && !prepare_started_) {
    prepare_started_ = true;
    out.effects.actions.emplace_back(node::PrepareNode{assignment_, assignment_.group_rank == 0});
  }
}

void NodeMachine::Handle(const node::KeeperLost& lost, Out& out) {
  const bool was_healthy = keeper_ready_ && out.now - keeper_ready_at_ >= kKeeperHealthyAfter;
  keeper_ready_ = false;
  keeper_failures_ = was_healthy ? 1 : keeper_failures_ + 1;
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
  RestartKeeper(lost.what, out);
}

void NodeMachine::LoseWorkersWithKeeper(const std::string& what, Out& out) {
  int lost = 0;
  for (Worker& worker : workers_) {
    lost += worker.state == WorkerState::kExited ? 0 : 1;
    worker.state = WorkerState::kExited;
  }
  live_workers_ = 0;
  if (lost > 0) {
    Fault(CauseKind::kKeeperDied,
          "keeper died (" + what + ") and " + std::to_string(lost) + " worker(s) with it", out);
  }
  phase_ = node::Phase::kKilling;
  kill_at_ = MonoTime::max();
  wedged_at_ = out.now + spec_.kill_wait;
  out.effects.actions.emplace_back(node::KillOrphans{generation()});
}

void NodeMachine::RestartKeeper(const std::string& what, Out& out) {
  if (exited_) {
    return;
  }
  if (keeper_failures_ > kKeeperFailuresMax) {
    Leave(1,
          "the keeper failed " + std::to_string(keeper_failures_) +
              " times in a row on this node, last: " + what,
          spec_.kill_wait, out);
    return;
  }
  const Duration delay =
      keeper_failures_ <= 1 ? Duration{} : kKeeperRetry * (1 << (keeper_failures_ - 2));
  out.effects.actions.emplace_back(node::StartKeeper{delay});
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
  for (size_t i = 0; i < workers_.size() && i < spawned.pids.size(); ++i) {
    if (workers_[i].state == WorkerState::kNotStarted) {
      workers_[i] = {WorkerState::kRunning, spawned.pids[i], -1};
      ++live_workers_;
    }
  }
  keeper_failures_ = 0;
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
  const int local_rank = reaped.exit.local_rank;
  if (IsStale(reaped.generation) || !MayHaveProcesses() || local_rank < 0 ||
      local_rank >= static_cast<int>(workers_.size())) {
    return;
  }
  Worker& worker = workers_[local_rank];
  if (worker.state == WorkerState::kExited) {
    return;
  }
  live_workers_ -= worker.state == WorkerState::kRunning ? 1 : 0;
  worker.state = WorkerState::kExited;
  const MonoTime died_at = out.now - reaped.age;
  const MonoTime failed_at = FailureTime(reaped, out.now);
  if (progress_changed_) {
    SendHeartbeat(out);  // How far the workers have come tells whether they were done.
  }
  SendReport(WorkerExited{Complete(reaped, died_at, failed_at)}, failed_at, out);
}

/// What was sent before the death counts, not what was sent before the death was heard of.
WorkerExit NodeMachine::Complete(const node::WorkerReaped& reaped, MonoTime died_at,
                                 MonoTime failed_at) const {
  WorkerExit exit = reaped.exit;
  exit.rank = assignment_.rank_offset + exit.local_rank;
  exit.last_step = std::max(exit.last_step, workers_[exit.local_rank].last_step);
  exit.after_stop = died_at >= stopped_at_;
  exit.killed_by_us = IsOurSignal(exit.signal, died_at);
  exit.failed_before_stop = exit.after_stop && failed_at < stopped_at_;
  return exit;
}

bool NodeMachine::IsOurSignal(int signal, MonoTime died_at) const {
  return (signal == stop_signal_ && signal != 0 && died_at >= stopped_at_) ||
         (signal == SIGKILL && died_at >= killed_at_);
}

/// A program reports its error before it tears down its connections, which is what its peers
/// notice, and may take long to end after that. A crash and a foreign signal leave no time for a
/// report: an error file is older then.
MonoTime NodeMachine::FailureTime(const node::WorkerReaped& reaped, MonoTime now) const {
  const MonoTime died_at = now - reaped.age;
  const int signal = reaped.exit.signal;
  const bool reports = signal == 0 || signal == SIGABRT || IsOurSignal(signal, died_at);
  if (!reports || !reaped.error_age) {
    return died_at;
  }
  const MonoTime reported_at = std::min(now - *reaped.error_age, died_at);
  return died_at - reported_at <= kLongestWayOut ? reported_at : died_at;
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
      if (live_workers_ > 0) {
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
  if (IsStale(progress.generation) || progress.local_rank < 0 ||
      progress.local_rank >= static_cast<int>(workers_.size())) {
    return;
  }
  Worker& worker = workers_[progress.local_rank];
  worker.last_step = std::max(worker.last_step, progress.progress.step);
  if (progress.local_rank == 0) {
    progress_ = progress.progress;
    progress_changed_ = true;
  }
}

void NodeMachine::Handle(const node::OperatorSignal& signal, Out& out) {
  if (leaving_) {
    if (phase_ == node::Phase::kStopping) {
      exit_message_ += "; the workers that were still running were killed at the second signal";
    }
    if (MayHaveProcesses()) {
      KillGeneration(out);
    }
    return;
  }
  leaving_ = true;
  operator_signal_ = signal.signal;
  exit_code_ = 1;
  exit_message_ = "stopped by signal " + std::to_string(signal.signal);
  SetReason("leaving: " + exit_message_);
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
  if (out.now >= stream_deadline_) {
    GiveUpCoordinator(out);
    return;
  }
  if (out.now >= kill_at_) {
    KillGeneration(out);
  }
  if (out.now >= wedged_at_) {
    DeclareWedged(out);
  }
  if (!exited_ && out.now >= next_heartbeat_) {
    next_heartbeat_ = out.now + heartbeat_interval_;
    SendHeartbeat(out);
  }
}

void NodeMachine::SendHeartbeat(Out& out) {
  AgentHeartbeat heartbeat;
  if (progress_changed_) {
    progress_changed_ = false;
    heartbeat.progress = progress_;
  }
  SendNow(std::move(heartbeat), generation(), out);
}

}  // namespace fsdprun
