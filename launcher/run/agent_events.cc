#include "launcher/run/agent_events.h"

#include <chrono>
#include <csignal>
#include <utility>
#include <variant>

namespace fsdprun {
namespace {

int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

void AgentEvents::Write(StateEvent event) {
  if (event.unix_ms == 0) {
    event.unix_ms = UnixMs();
  }
  write_(FormatEvent(event, context_));
}

void AgentEvents::On(const node::Event& event) {
  if (const auto* spawned = std::get_if<node::WorkersSpawned>(&event)) {
    OnSpawned(*spawned);
  } else if (const auto* reaped = std::get_if<node::WorkerReaped>(&event)) {
    OnReaped(*reaped);
  } else if (std::holds_alternative<node::AllWorkersGone>(event)) {
    rendezvous_since_ = MonoNow();
  }
}

void AgentEvents::On(const node::Action& action) {
  if (const auto* prepare = std::get_if<node::PrepareNode>(&action)) {
    OnPrepare(prepare->assignment);
  } else if (const auto* spawn = std::get_if<node::SpawnWorkers>(&action)) {
    OnAssigned(spawn->assignment);
  } else if (const auto* signal = std::get_if<node::SignalWorkers>(&action)) {
    stop_signal_ = signal->signal != 0 ? signal->signal : stop_signal_;
    stopped_at_ = std::min(stopped_at_, MonoNow());
  } else if (std::holds_alternative<node::KillWorkers>(action)) {
    stop_signal_ = SIGKILL;
    stopped_at_ = std::min(stopped_at_, MonoNow());
  }
}

void AgentEvents::OnPrepare(const RankAssignment& assignment) {
  prepared_at_ = MonoNow();
  context_.restarts = assignment.restart_count;
  Write({.state = "RENDEZVOUS", .duration_ms = Milliseconds(prepared_at_ - rendezvous_since_)});
}

/// The ranks are part of later events, as in torchrun.
void AgentEvents::OnAssigned(const RankAssignment& assignment) {
  Write({.state = "ASSIGN_WORKER_RANKS", .duration_ms = Milliseconds(MonoNow() - prepared_at_)});
  assignment_ = assignment;
  context_.group_rank = assignment.group_rank;
  context_.group_world_size = assignment.group_world_size;
  stop_signal_ = 0;
  stopped_at_ = MonoTime::max();
}

EventWorker AgentEvents::PlaceOf(int local_rank, int64_t pid) const {
  return {.local_rank = local_rank,
          .rank = assignment_.rank_offset + local_rank,
          .role_rank = assignment_.role_rank_offset + local_rank,
          .role_world_size = assignment_.role_world_size,
          .pid = pid};
}

void AgentEvents::OnSpawned(const node::WorkersSpawned& spawned) {
  for (size_t i = 0; i < spawned.pids.size(); ++i) {
    Write({.state = "START", .worker = PlaceOf(static_cast<int>(i), spawned.pids[i])});
  }
}

void AgentEvents::OnReaped(const node::WorkerReaped& reaped) {
  const WorkerExit& exit = reaped.exit;
  StateEvent event{.state = "SUCCEEDED",
                   .unix_ms = exit.exited_unix_ns / 1'000'000,
                   .worker = PlaceOf(exit.local_rank, exit.pid)};
  if (!exit.Succeeded()) {
    const bool is_ours = exit.signal != 0 && MonoNow() - reaped.age >= stopped_at_ &&
                         (exit.signal == stop_signal_ || exit.signal == SIGKILL);
    event.state = is_ours ? "TERMINATED" : "FAILED";
    event.worker->exit_code = exit.signal != 0 ? -exit.signal : exit.exit_code;
    event.raw_error = is_ours ? std::nullopt : std::optional(RawErrorOf(exit));
  }
  Write(std::move(event));
}

void AgentEvents::OnTimer(const ExpiredTimer& timer) {
  WatchdogEvent event{.name = "timer expired",
                      .unix_ms = UnixMs(),
                      .pid = timer.process.pid,
                      .scope = timer.scope,
                      .expires_unix_s = timer.expires_unix_s,
                      .signal = timer.signal};
  write_(FormatEvent(event, context_));
  if (timer.signal > 0) {
    event.name = "kill worker process";
    write_(FormatEvent(event, context_));
  }
}

void AgentEvents::OnEnd(const std::string& error) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(MonoNow() - began_at_);
  context_.total_run_time_s = seconds.count();
  StateEvent event{.state = error.empty() ? "SUCCEEDED" : "FAILED"};
  if (!error.empty()) {
    event.raw_error = error;
  }
  Write(std::move(event));
}

}  // namespace fsdprun
