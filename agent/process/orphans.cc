#include "agent/process/orphans.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "agent/process/process_scan.h"
#include "base/mutex.h"

namespace fsdprun {

namespace {

struct SparedChildren {
  Mutex mu;
  std::set<pid_t> pids ABSL_GUARDED_BY(mu);
};

SparedChildren& Spared() {
  static SparedChildren* const spared = new SparedChildren;
  return *spared;
}

std::set<pid_t> WithSparedChildren(std::set<pid_t> pids) {
  const MutexLock lock(Spared().mu);
  pids.insert(Spared().pids.begin(), Spared().pids.end());
  return pids;
}

}  // namespace

SparedChild::SparedChild(pid_t pid) : pid_(pid) {
  const MutexLock lock(Spared().mu);
  Spared().pids.insert(pid_);
}

SparedChild::~SparedChild() {
  const MutexLock lock(Spared().mu);
  Spared().pids.erase(pid_);
}

void BecomeSubreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::set<pid_t> ListChildren() {
  std::set<pid_t> children;
  if (!HasAnyChild()) {
    return children;
  }
  const pid_t self = ::getpid();
  std::vector<ProcessInfo> processes;
  ScanDescendants(
      self, {.skips_children = [self](const ProcessInfo& process) { return process.pid != self; }},
      processes);
  for (const ProcessInfo& process : processes) {
    if (process.parent == self) {
      children.insert(process.pid);
    }
  }
  return children;
}

int KillOrphans(const std::set<pid_t>& spared_here, const std::set<pid_t>& not_awaited) {
  if (!HasAnyChild()) {
    return 0;
  }
  const std::set<pid_t> spared = WithSparedChildren(spared_here);
  std::vector<ProcessInfo> processes;
  const pid_t self = ::getpid();
  ScanDescendants(
      self,
      {.skips_children =
           [&spared](const ProcessInfo& process) { return spared.count(process.pid) > 0; }},
      processes);
  std::vector<char> is_ours(processes.size());
  std::vector<char> is_spared(processes.size());
  for (size_t i = 0; i < processes.size(); ++i) {
    is_ours[i] = processes[i].pid == self;
    is_spared[i] = spared.count(processes[i].pid) > 0;
  }
  MarkDescendants(processes, is_ours);
  MarkDescendants(processes, is_spared);
  int alive = 0;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (!is_ours[i] || is_spared[i] || processes[i].pid == self) {
      continue;
    }
    if (!processes[i].IsDead()) {
      alive += not_awaited.count(processes[i].pid) > 0 ? 0 : 1;
      KillExactly(processes[i]);
    } else if (processes[i].parent == self) {
      ::waitpid(processes[i].pid, nullptr, WNOHANG);
    }
  }
  return alive;
}

int KillStrangers(const Strangers& strangers) {
  int alive = 0;
  for (const auto& [key, process] : strangers) {
    pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ended, 1, 0) == 0) {
      ++alive;
      ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
    }
  }
  return alive;
}

}  // namespace fsdprun
