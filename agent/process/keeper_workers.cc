// Events of a worker, from its start to the report of its exit.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "agent/process/keeper.h"
#include "proto/worker_contract.h"

namespace fsdprun::keeper {
namespace {

/// Reported exit code of a worker whose status the kernel has already discarded.
constexpr int kUnknownExitCode = 255;

}  // namespace

void Keeper::ReadFailurePipe(Worker& worker) {
  if (worker.failure_pipe < 0) {
    return;  // Read already, when the death of the child was seen in the same round.
  }
  ChildFailure failure;
  const ssize_t got = ::read(worker.failure_pipe, &failure, sizeof(failure));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  CloseFd(worker.failure_pipe);
  if (got == static_cast<ssize_t>(sizeof(failure))) {
    SpawnFailedReport report = Describe(failure, *worker.plan, worker.local_rank);
    report.life = worker.life;
    Tell(report);
    worker.phase = Phase::kFailed;  // The child may not have ended yet, so its plan stays.
  } else {
    Tell(SpawnedReport{worker.local_rank, worker.pid, worker.life});
    worker.phase = Phase::kRunning;
    all_gone_pending_ = true;
    worker.plan.reset();
  }
}

void Keeper::ReadControl(Worker& worker) {
  worker.control.Receive();
  std::string_view line;
  while (worker.control.TakeLine(line)) {
    AppendControlRecord(worker.local_rank, worker.life, line, outgoing_);
  }
  if (worker.control.TakeOverflow() && HasBulkRoom()) {
    Tell(NoteReport{worker.local_rank, "dropped a control record longer than " +
                                           std::to_string(contract::kMaxRecordBytes) + " bytes"});
  }
}

void DecodeWaitStatus(const siginfo_t& info, ExitedReport& report) {
  if (info.si_code == CLD_EXITED) {
    report.exit_code = info.si_status;
  } else {
    report.signal = info.si_status;
    report.dumped_core = info.si_code == CLD_DUMPED;
  }
}

void Keeper::OnWorkerDeath(Worker& worker) {
  if (worker.phase == Phase::kStarting && worker.failure_pipe >= 0) {
    ReadFailurePipe(worker);  // Tells a death from a failed start.
  }
  if (worker.phase != Phase::kRunning) {
    sweep_wanted_ = true;
    next_sweep_ns_ = 0;
    return;
  }
  siginfo_t info{};
  // Not reaped yet; see Note [Who belongs to a worker].
  const int rc = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(worker.pidfd), &info,
                          WEXITED | WNOHANG | WNOWAIT);
  if (rc == 0 && info.si_pid == 0) {
    return;
  }
  worker.exit.local_rank = worker.local_rank;
  worker.exit.life = worker.life;
  worker.exit.pid = worker.pid;
  if (rc != 0) {
    // Already reaped by someone else, so its status is lost. Its pid may be reused: it must not be
    // signalled.
    worker.exit.exit_code = kUnknownExitCode;
    Tell(NoteReport{worker.local_rank, "cannot learn how the worker ended (" +
                                           std::string(std::strerror(errno)) +
                                           "); taken as a failure"});
  } else {
    DecodeWaitStatus(info, worker.exit);
  }
  worker.exit.seen_ns = NowNs(CLOCK_MONOTONIC);
  worker.phase = Phase::kDead;
  worker.has_ended = rc == 0;
  if (rc == 0) {
    ::kill(-worker.pid, SIGKILL);
  }
  SweepSoon();
}

Keeper::Worker* Keeper::FindCurrent(int local_rank, uint64_t life) {
  for (const auto& worker : workers_) {
    if (worker->local_rank == local_rank && worker->IsOfLife(life) &&
        (!worker->IsOver() || worker->phase == Phase::kDead)) {
      return worker.get();
    }
  }
  return nullptr;
}

}  // namespace fsdprun::keeper
