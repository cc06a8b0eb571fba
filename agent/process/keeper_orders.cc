// The agent's commands: start workers, signal them, write to their control sockets, kill them.
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "agent/process/keeper.h"

namespace fsdprun::keeper {
namespace {

void SendSignal(int pidfd, int signal) {
  ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

}  // namespace

void Keeper::Apply(const SpawnCommand& command) {
  if (!record_.Begin(command.local_rank, command.life) && named_.listener >= 0) {
    return;  // An agent that does not know whether the last one has ordered it.
  }
  SpawnFailedReport failure{
      .local_rank = command.local_rank, .path = command.argv.front(), .life = command.life};
  if (is_ending_ || FindCurrent(command.local_rank) != nullptr) {
    failure.error = is_ending_ ? ESHUTDOWN : EEXIST;
    failure.attempted = is_ending_ ? "start, while everything is being ended,"
                                   : "start a second worker in the same slot for";
    Tell(failure);
    return;
  }
  auto worker = std::make_unique<Worker>();
  worker->local_rank = command.local_rank;
  worker->life = command.life;
  life_ = std::max(life_, command.life);
  worker->phase = Phase::kOpening;
  if (!OpenStreams(*worker, command, failure)) {
    Tell(failure);
    return;
  }
  worker->plan = std::make_unique<SpawnPlan>(command, worker->child_fds.control_fd);
  workers_.push_back(std::move(worker));
  Worker& added = *workers_.back();
  BeginLogs(added, command);
  if (added.IsSettled()) {
    Start(added);
  }
}

bool Keeper::OpenStreams(Worker& worker, const SpawnCommand& command, SpawnFailedReport& failure) {
  failure.attempted = "make the output pipes of";
  if (!command.stdout_path.empty()) {
    worker.child_fds.stdout_fd = worker.logs[0].MakePipe();
    failure.error = errno;
    if (worker.child_fds.stdout_fd < 0) {
      return false;
    }
  }
  if (!command.stderr_path.empty()) {
    worker.child_fds.stderr_fd = worker.logs[1].MakePipe();
    failure.error = errno;
    if (worker.child_fds.stderr_fd < 0) {
      return false;
    }
  }
  if (command.wants_control_fd) {
    worker.child_fds.control_fd = worker.control.Open();
    failure.error = errno;
    failure.attempted = "make the control socket of";
    return worker.child_fds.control_fd >= 0;
  }
  return true;
}

/// Its log files are open, or will not be.
void Keeper::Start(Worker& worker) {
  const StartedChild child = StartChild(*worker.plan, worker.child_fds);
  if (child.pid < 0) {
    return CancelStart(worker, child.error, "create a process for");
  }
  worker.phase = Phase::kStarting;
  worker.pid = child.pid;
  worker.pidfd = child.pidfd;
  worker.failure_pipe = child.failure_pipe;
  worker.CloseChildFds();
  for (const SignalCommand& signal : std::exchange(worker.early_signals, {})) {
    SendSignal(worker.pidfd, signal.signal);
  }
}

void Keeper::CancelStart(Worker& worker, int error, const char* attempted) {
  Tell(SpawnFailedReport{.local_rank = worker.local_rank,
                         .error = error,
                         .attempted = attempted,
                         .path = worker.plan->argv.front(),
                         .life = worker.life});
  worker.phase = Phase::kFailed;
  worker.CloseChildFds();
  sweep_wanted_ = true;
  next_sweep_ns_ = 0;
}

void Keeper::Apply(const SignalCommand& command) {
  for (const auto& worker : workers_) {
    const bool is_meant =
        (command.local_rank == kAllRanks || command.local_rank == worker->local_rank) &&
        worker->IsOfLife(command.life);
    if (is_meant && worker->phase == Phase::kOpening) {
      worker->early_signals.push_back(command);
    }
    if (!is_meant || !worker->IsAlive()) {
      continue;
    }
    // Before its setsid() the worker has no group yet: then the process alone is signalled.
    if (!command.group || ::kill(-worker->pid, command.signal) != 0) {
      SendSignal(worker->pidfd, command.signal);
    }
  }
}

/// A process that has ended, or whose number another one has got, needs no signal any more.
void Keeper::Apply(const SignalProcessCommand& command) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, command.pid, 0));
  if (pidfd < 0) {
    return;
  }
  ProcessInfo process;
  const bool is_same =
      ReadProcess(command.pid, process) && process.start_time_ticks == command.start_time_ticks;
  if (is_same && IsOfWorker(command.pid)) {
    SendSignal(pidfd, command.signal);
  } else if (is_same) {
    Tell(NoteReport{kAllRanks, "refused to send signal " + std::to_string(command.signal) +
                                   " to process " + std::to_string(command.pid) +
                                   ": it is not one of this job's workers, nor was it "
                                   "started by one"});
  }
  ::close(pidfd);
}

void Keeper::Apply(const ControlLineCommand& command) {
  Worker* worker = FindCurrent(command.local_rank, command.life);
  if (worker != nullptr && !worker->control.SendLine(command.line)) {
    Tell(NoteReport{command.local_rank,
                    "dropped a control record: the worker does not read its control socket"});
  }
}

void Keeper::Apply(const KillAllCommand& command) {
  life_ = std::max(life_, command.life);
  for (const auto& worker : workers_) {
    worker->kill_requested = true;
    if (worker->phase == Phase::kOpening) {
      CancelStart(*worker, ECANCELED, "start, while everything is being ended,");
    } else if (worker->IsAlive()) {
      ::kill(-worker->pid, SIGKILL);
      SendSignal(worker->pidfd, SIGKILL);
    }
  }
  all_gone_pending_ = true;
  sweep_wanted_ = true;
  next_sweep_ns_ = 0;
  sweep_pause_ns_ = 0;
}

void Keeper::Apply(const ShutdownCommand&) {
  is_ending_ = true;
  Apply(KillAllCommand{});
}

void Keeper::Apply(const LeaseCommand& command) {
  lease_.Set(int64_t{command.lease_ms} * 1'000'000, NowNs(CLOCK_MONOTONIC));
}

}  // namespace fsdprun::keeper
