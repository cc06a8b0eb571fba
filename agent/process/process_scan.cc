#include "agent/process/process_scan.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fsdprun {
namespace {

/// Layout of the kernel's directory entries (getdents64(2)); opendir would allocate.
struct KernelDirent {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[1];
};

template <class Integer>
bool TakeNumber(std::string_view& text, Integer& value) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) {
    return false;
  }
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return true;
}

/// Calls `visit` for every entry of `folder` whose name is a number. False without such a folder.
template <class Visit>
bool ForEachNumber(const char* folder, const Visit& visit) {
  const int fd = ::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  alignas(KernelDirent) char buffer[8192];
  for (;;) {
    const long size = ::syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
    if (size <= 0) {
      break;
    }
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const KernelDirent*>(buffer + at);
      at += entry->length;
      const char* name = reinterpret_cast<const char*>(entry) + offsetof(KernelDirent, name);
      if (name[0] >= '1' && name[0] <= '9') {
        visit(std::atoi(name));
      }
    }
  }
  ::close(fd);
  return true;
}

void SortByPid(std::vector<ProcessInfo>& processes) {
  std::sort(processes.begin(), processes.end(),
            [](const ProcessInfo& a, const ProcessInfo& b) { return a.pid < b.pid; });
}

void AddOnce(pid_t pid, const ScanLimits& limits, std::vector<ProcessInfo>& processes) {
  const bool is_listed = std::any_of(processes.begin(), processes.end(),
                                     [pid](const ProcessInfo& p) { return p.pid == pid; });
  ProcessInfo info;
  if (!is_listed && !limits.leaves_out(pid) && ReadProcess(pid, info)) {
    processes.push_back(info);
  }
}

/// Appends the children of one thread. False on a kernel that does not list them.
bool AddChildrenOfThread(pid_t pid, pid_t thread, const ScanLimits& limits,
                         std::vector<ProcessInfo>& processes) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/task/%d/children", static_cast<int>(pid),
                static_cast<int>(thread));
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  char text[4096];
  pid_t child = 0;
  for (ssize_t size; (size = ::read(fd, text, sizeof(text))) > 0;) {
    for (ssize_t i = 0; i < size; ++i) {
      if (text[i] >= '0' && text[i] <= '9') {
        child = child * 10 + (text[i] - '0');
      } else if (child != 0) {
        AddOnce(std::exchange(child, 0), limits, processes);
      }
    }
  }
  ::close(fd);
  return true;
}

/// Appends the children of all threads of a process. False if no thread's list could be read.
bool AddChildren(pid_t pid, const ScanLimits& limits, std::vector<ProcessInfo>& processes) {
  char folder[32];
  std::snprintf(folder, sizeof(folder), "/proc/%d/task", static_cast<int>(pid));
  bool is_listed = false;
  ForEachNumber(folder, [pid, &limits, &processes, &is_listed](pid_t thread) {
    is_listed |= AddChildrenOfThread(pid, thread, limits, processes);
  });
  return is_listed;
}

}  // namespace

bool ParseProcStat(std::string_view text, ProcessInfo& info) {
  const size_t end_of_name = text.rfind(')');
  std::string_view head = text;
  if (end_of_name == std::string_view::npos || !TakeNumber(head, info.pid)) {
    return false;
  }
  std::string_view tail = text.substr(end_of_name + 1);
  if (tail.size() < 3 || tail[0] != ' ') {
    return false;
  }
  info.state = tail[1];
  tail.remove_prefix(2);
  pid_t group = 0;
  if (!TakeNumber(tail, info.parent) || !TakeNumber(tail, group) ||
      !TakeNumber(tail, info.session)) {
    return false;
  }
  // proc(5): fields 7 to 21 lie between the session and the start time.
  for (int field = 7; field <= 21; ++field) {
    int64_t ignored = 0;
    uint64_t ignored_unsigned = 0;
    if (!TakeNumber(tail, ignored) && !TakeNumber(tail, ignored_unsigned)) {
      return false;
    }
  }
  return TakeNumber(tail, info.start_time_ticks);
}

bool ReadProcess(pid_t pid, ProcessInfo& info) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", static_cast<int>(pid));
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  char text[1024];
  const ssize_t size = ::read(fd, text, sizeof(text));
  ::close(fd);
  return size > 0 && ParseProcStat(std::string_view(text, static_cast<size_t>(size)), info);
}

void ScanProcesses(std::vector<ProcessInfo>& processes) {
  processes.clear();
  ForEachNumber("/proc", [&processes](pid_t pid) {
    ProcessInfo info;
    if (ReadProcess(pid, info)) {
      processes.push_back(info);
    }
  });
  SortByPid(processes);
}

void ScanDescendants(pid_t root, const ScanLimits& limits, std::vector<ProcessInfo>& processes) {
  // More rounds are needed only while parents die faster than their children can be listed.
  constexpr int kMaxRounds = 8;
  processes.clear();
  ProcessInfo self;
  if (!ReadProcess(root, self)) {
    return;
  }
  processes.push_back(self);
  size_t known = 0;
  for (int round = 0; round < kMaxRounds && known < processes.size(); ++round) {
    known = processes.size();
    if (!AddChildren(root, limits, processes)) {
      return ScanProcesses(processes);
    }
    for (size_t i = known; i < processes.size(); ++i) {
      const ProcessInfo process = processes[i];
      if (!limits.skips_children(process)) {
        AddChildren(process.pid, limits, processes);
      }
    }
  }
  SortByPid(processes);
}

bool HasAnyChild() {
  siginfo_t ignored;
  return ::waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

void MarkDescendants(const std::vector<ProcessInfo>& processes, std::vector<char>& is_member) {
  // Pids wrap around, so a child may come before its parent: repeat until nothing changes (depth of
  // the tree times).
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < processes.size(); ++i) {
      if (is_member[i]) {
        continue;
      }
      const auto parent =
          std::lower_bound(processes.begin(), processes.end(), processes[i].parent,
                           [](const ProcessInfo& p, pid_t pid) { return p.pid < pid; });
      if (parent != processes.end() && parent->pid == processes[i].parent &&
          is_member[static_cast<size_t>(parent - processes.begin())]) {
        is_member[i] = 1;
        changed = true;
      }
    }
  }
}

bool SignalExactly(const ProcessInfo& target, int signal) {
  // The descriptor pins the process it was opened for; the start time tells whether that is
  // `target`.
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, target.pid, 0));
  if (pidfd < 0) {
    return false;
  }
  ProcessInfo now;
  const bool is_same =
      ReadProcess(target.pid, now) && now.start_time_ticks == target.start_time_ticks;
  const bool sent = is_same && ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0;
  ::close(pidfd);
  return sent;
}

bool KillExactly(const ProcessInfo& target) { return SignalExactly(target, SIGKILL); }

}  // namespace fsdprun
