#include "launcher/chaos/run/job_processes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/process/process_scan.h"
#include "proto/worker_contract.h"

namespace fsdprun::chaos {
namespace {

constexpr char kKeeperName[] = "fsdp-keeper";
constexpr int kMostGenerations = 64;

std::string ReadProc(int64_t pid, const char* name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool IsOwn(int64_t pid) {
  struct stat info {};
  return ::stat(absl::StrCat("/proc/", pid).c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

bool IsKeeper(int64_t pid) { return ReadProc(pid, "comm") == absl::StrCat(kKeeperName, "\n"); }

/// The rank of a worker of the job; nothing for other processes.
std::optional<int> RankIn(const std::string& run_id, int64_t pid) {
  const std::string environment = ReadProc(pid, "environ");
  const std::string id = absl::StrCat(contract::kEnvRunId, "=", run_id);
  const std::string rank = absl::StrCat(contract::kEnvRank, "=");
  bool is_of_job = false;
  std::optional<int> found;
  for (const absl::string_view variable : absl::StrSplit(environment, '\0')) {
    is_of_job |= variable == id;
    int number = 0;
    if (variable.substr(0, rank.size()) == rank &&
        absl::SimpleAtoi(variable.substr(rank.size()), &number)) {
      found = number;
    }
  }
  return is_of_job ? found : std::nullopt;
}

/// A keeper, and what belongs to it.
struct Household {
  ProcessInfo keeper;
  std::optional<ProcessInfo> agent;
  std::map<int, ProcessInfo> workers;
};

std::vector<Household> FindHouseholds(const std::vector<ProcessInfo>& processes,
                                      const JobMarks& marks) {
  std::vector<Household> households;
  for (const ProcessInfo& keeper : processes) {
    if (keeper.IsDead() || !IsOwn(keeper.pid) || !IsKeeper(keeper.pid)) {
      continue;
    }
    Household household{.keeper = keeper};
    for (const ProcessInfo& process : processes) {
      if (process.pid == keeper.parent && IsOwn(process.pid) && process.pid > 1) {
        household.agent = process;
      }
      if (process.parent != keeper.pid || process.IsDead() || !IsOwn(process.pid)) {
        continue;
      }
      if (const std::optional<int> rank = RankIn(marks.run_id, process.pid)) {
        household.workers[*rank] = process;
      }
    }
    const bool is_of_launcher =
        marks.launchers.count(keeper.parent) > 0 || keeper.parent == marks.coordinator_pid;
    if (is_of_launcher || !household.workers.empty()) {
      households.push_back(household);
    }
  }
  std::sort(households.begin(), households.end(), [](const Household& a, const Household& b) {
    const int first = a.workers.empty() ? INT32_MAX : a.workers.begin()->first;
    const int second = b.workers.empty() ? INT32_MAX : b.workers.begin()->first;
    return std::pair(first, a.keeper.pid) < std::pair(second, b.keeper.pid);
  });
  return households;
}

JobProcess Process(FaultTarget role, const ProcessInfo& info, int number) {
  return {.role = role, .pid = info.pid, .start_ticks = info.start_time_ticks, .number = number};
}

}  // namespace

std::vector<JobProcess> FindJobProcesses(const JobMarks& marks) {
  std::vector<ProcessInfo> processes;
  ScanProcesses(processes);
  std::vector<JobProcess> found;
  std::set<int64_t> agents;
  int next = 0;
  for (const Household& household : FindHouseholds(processes, marks)) {
    const auto launcher = marks.launchers.find(household.keeper.parent);
    const int number = launcher != marks.launchers.end() ? launcher->second : next++;
    found.push_back(Process(FaultTarget::kKeeper, household.keeper, number));
    if (household.agent.has_value()) {
      found.push_back(Process(FaultTarget::kAgent, *household.agent, number));
      agents.insert(household.agent->pid);
    }
    for (const auto& [rank, worker] : household.workers) {
      found.push_back(Process(FaultTarget::kWorker, worker, rank));
    }
  }
  ProcessInfo coordinator;
  if (marks.coordinator_pid > 0 && IsOwn(marks.coordinator_pid) &&
      ReadProcess(static_cast<pid_t>(marks.coordinator_pid), coordinator) &&
      !coordinator.IsDead()) {
    found.push_back(Process(FaultTarget::kCoordinator, coordinator, -1));
  }
  for (JobProcess& process : found) {
    process.is_both = process.pid == marks.coordinator_pid && agents.count(process.pid) > 0;
  }
  return found;
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
