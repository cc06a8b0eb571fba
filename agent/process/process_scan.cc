#include "agent/process/process_scan.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
  const int fd = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return;
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
      ProcessInfo info;
      if (name[0] >= '1' && name[0] <= '9' && ReadProcess(std::atoi(name), info)) {
        processes.push_back(info);
      }
    }
  }
  ::close(fd);
  std::sort(processes.begin(), processes.end(),
            [](const ProcessInfo& a, const ProcessInfo& b) { return a.pid < b.pid; });
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

bool KillExactly(const ProcessInfo& target) {
  // The descriptor pins the process it was opened for; the start time tells whether that is the one
  // we mean.
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, target.pid, 0));
  if (pidfd < 0) {
    return false;
  }
  ProcessInfo now;
  const bool is_same =
      ReadProcess(target.pid, now) && now.start_time_ticks == target.start_time_ticks;
  const bool sent = is_same && ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0;
  ::close(pidfd);
  return sent;
}

}  // namespace fsdprun
