#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace fsdprun {

/// One row of /proc. The pid alone is reused by the kernel; (pid, start_time_ticks) is an identity.
struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';
  uint64_t start_time_ticks = 0;

  bool IsDead() const { return state == 'Z' || state == 'X'; }
};

/// Parses the text of /proc/<pid>/stat. The command in it may hold any bytes, also ')' and
/// newlines. Returns false when the text is not one.
bool ParseProcStat(std::string_view text, ProcessInfo& info);

/// Reads one process; false when it is gone.
bool ReadProcess(pid_t pid, ProcessInfo& info);

/// Fills `processes` with every process of the machine, in order of pid. Keeps the vector's
/// capacity, allocates nothing else. Processes that end meanwhile may be missing.
void ScanProcesses(std::vector<ProcessInfo>& processes);

/// What a scan need not look at.
struct ScanLimits {
  /// Not listed, and its children neither.
  std::function<bool(pid_t)> leaves_out = [](pid_t) { return false; };
  /// Listed without its children.
  std::function<bool(const ProcessInfo&)> skips_children = [](const ProcessInfo&) { return false; };
};

/// The same for `root` and its descendants, at the cost of those processes only. `root` must be a
/// subreaper: then a process whose parent dies during the scan is found again among its children.
/// Falls back to ScanProcesses(), which has no limits, on a kernel without
/// /proc/<pid>/task/*/children.
void ScanDescendants(pid_t root, const ScanLimits& limits, std::vector<ProcessInfo>& processes);

/// Marks in `is_member` (same length as `processes`) everything that descends from a marked
/// process. Pure.
void MarkDescendants(const std::vector<ProcessInfo>& processes, std::vector<char>& is_member);

/// Exact, one system call: false if this process has no child, alive or dead. For a subreaper that
/// means that it has no descendants.
bool HasAnyChild();

/// Sends `signal` to `target` if it is still the same process; whether it was sent.
bool SignalExactly(const ProcessInfo& target, int signal);
/// The same with SIGKILL.
bool KillExactly(const ProcessInfo& target);

}  // namespace fsdprun
