#include "launcher/chaos/run/job_processes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"

namespace fsdprun::chaos {
namespace {

constexpr int kMostGenerations = 64;

std::string ReadProc(int64_t pid, const char* name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool IsOwn(int64_t pid) {
  struct stat info {};
  return ::stat(absl::StrCat("/proc/", pid).c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

std::string NameOf(int64_t pid) {
  return std::string(absl::StripTrailingAsciiWhitespace(ReadProc(pid, "comm")));
}

/// A daemon's session has its standard error in its folder, and so have the keepers below it.
std::string FolderOf(int64_t pid, const std::string& name) {
  if (!IsKeeperName(name)) {
    return SessionFolderOf(ReadProc(pid, "cmdline"));
  }
  std::error_code gone;
  return std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/fd/", STDERR_FILENO), gone)
      .parent_path()
      .string();
}

SeenProcess Seen(const ProcessInfo& info) {
  const std::string name = NameOf(info.pid);
  return {.pid = info.pid,
          .parent = info.parent,
          .start_ticks = info.start_time_ticks,
          .name = name,
          .folder = IsKeeperName(name) || IsAgentName(name) ? FolderOf(info.pid, name) : ""};
}

/// Who may have adopted a keeper.
std::set<int64_t> PidsOfAgents(const std::vector<ProcessInfo>& processes) {
  std::set<int64_t> agents;
  for (const ProcessInfo& info : processes) {
    if (IsOwn(info.pid) && IsAgentName(NameOf(info.pid))) {
      agents.insert(info.pid);
    }
  }
  return agents;
}

/// Keepers, their agents and children, and the coordinator. The rest of the machine is not looked
/// at: a keeper leads a session.
std::vector<SeenProcess> SeenAround(const std::vector<ProcessInfo>& processes,
                                    const JobMarks& marks) {
  std::set<int64_t> keepers;
  std::set<int64_t> others{marks.coordinator_pid};
  bool is_any_lost = false;
  for (const ProcessInfo& info : processes) {
    if (info.session == info.pid && IsOwn(info.pid) && IsKeeperName(NameOf(info.pid))) {
      keepers.insert(info.pid);
      others.insert(info.parent);
      is_any_lost |= !IsAgentName(NameOf(info.parent));
    }
  }
  if (is_any_lost) {
    others.merge(PidsOfAgents(processes));
  }
  std::vector<SeenProcess> seen;
  for (const ProcessInfo& info : processes) {
    const bool is_child = keepers.count(info.parent) > 0;
    const bool is_meant = is_child || keepers.count(info.pid) > 0 || others.count(info.pid) > 0;
    if (!is_meant || info.IsDead() || info.pid <= 1 || info.pid == ::getpid() || !IsOwn(info.pid)) {
      continue;
    }
    seen.push_back(Seen(info));
    if (is_child) {
      seen.back().worker = WorkerMarksOf(ReadProc(info.pid, "environ"));
    }
  }
  return seen;
}

}  // namespace

std::vector<JobProcess> FindJobProcesses(const JobMarks& marks) {
  std::vector<ProcessInfo> processes;
  ScanProcesses(processes);
  return JobProcessesAmong(SeenAround(processes, marks), marks);
}

bool DescendsFrom(int64_t pid, int64_t ancestor) {
  ProcessInfo info;
  for (int i = 0; i < kMostGenerations && pid > 1; ++i) {
    if (pid == ancestor) {
      return true;
    }
    if (!ReadProcess(static_cast<pid_t>(pid), info)) {
      return false;
    }
    pid = info.parent;
  }
  return false;
}

}  // namespace fsdprun::chaos
