// The agent's commands: start workers, signal them, write to their control sockets, kill them.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "agent/process/keeper.h"

namespace fsdprun::keeper {
namespace {

void SendSignal(int pidfd, int signal) {
  ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

}  // namespace

void Keeper::Apply(const SpawnCommand& command) {
  SpawnFailedReport failure{.local_rank = command.local_rank, .path = command.argv.front()};
  if (is_ending_ || FindCurrent(command.local_rank) != nullptr) {
    failure.error = is_ending_ ? ESHUTDOWN : EEXIST;
    failure.attempted = is_ending_ ? "start, while everything is being ended,"
                                   : "start a second worker in the same slot for";
    AppendReport(failure, outgoing_);
    return;
  }
  auto worker = std::make_unique<Worker>();
  worker->local_rank = command.local_rank;
  ChildFds fds;
  if (OpenStreams(*worker, command, fds, failure)) {
    worker->plan = std::make_unique<SpawnPlan>(command, fds.control_fd);
    const StartedChild child = StartChild(*worker->plan, fds);
    worker->pid = child.pid;
    worker->pidfd = child.pidfd;
    worker->failure_pipe = child.failure_pipe;
    failure.error = child.error;
    failure.attempted = "create a process for";
  }
  CloseFd(fds.stdout_fd);
  CloseFd(fds.stderr_fd);
  CloseFd(fds.control_fd);
  if (worker->pid < 0) {
    AppendReport(failure, outgoing_);
    return;
  }
  workers_.push_back(std::move(worker));
}

bool Keeper::OpenStreams(Worker& worker, const SpawnCommand& command, ChildFds& fds,
                         SpawnFailedReport& failure) {
  failure.attempted = "make the output pipes of";
  if (!command.stdout_path.empty()) {
    fds.stdout_fd = worker.logs[0].Open(command.stdout_path);
    failure.error = errno;
    if (fds.stdout_fd < 0) {
      return false;
    }
  }
  if (!command.stderr_path.empty()) {
    fds.stderr_fd = worker.logs[1].Open(command.stderr_path);
    failure.error = errno;
    if (fds.stderr_fd < 0) {
      return false;
    }
  }
  if (command.wants_control_fd) {
    fds.control_fd = worker.control.Open();
    failure.error = errno;
    failure.attempted = "make the control socket of";
    return fds.control_fd >= 0;
  }
  return true;
}

void Keeper::Apply(const SignalCommand& command) {
  for (const auto& worker : workers_) {
    const bool is_meant =
        command.local_rank == kAllRanks || command.local_rank == worker->local_rank;
    if (!is_meant || !worker->IsAlive()) {
      continue;
    }
    // Before its setsid() the worker has no group yet: then the process alone is signalled.
    if (!command.group || ::kill(-worker->pid, command.signal) != 0) {
      SendSignal(worker->pidfd, command.signal);
    }
  }
}

void Keeper::Apply(const ControlLineCommand& command) {
  Worker* worker = FindCurrent(command.local_rank);
  if (worker != nullptr && !worker->control.SendLine(command.line)) {
    AppendReport(
        NoteReport{command.local_rank,
                   "dropped a control record: the worker does not read its control socket"},
        outgoing_);
  }
}

void Keeper::Apply(const KillAllCommand&) {
  for (const auto& worker : workers_) {
    worker->kill_requested = true;
    if (worker->IsAlive()) {
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

}  // namespace fsdprun::keeper
