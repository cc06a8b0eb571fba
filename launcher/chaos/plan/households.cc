#include "launcher/chaos/plan/households.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "proto/worker_contract.h"

namespace fsdprun::chaos {
namespace {

constexpr absl::string_view kKeeperName = "fsdp-keeper";
constexpr absl::string_view kLauncherName = "fsdprun";
/// A daemon, and its sessions.
constexpr absl::string_view kAgentName = "fsdp-agent";

constexpr absl::string_view kSessionOption = "--session";

using ByPid = std::map<int64_t, SeenProcess>;

/// A keeper, and what belongs to it.
struct Household {
  SeenProcess keeper;
  std::optional<SeenProcess> agent;
  /// By rank.
  std::map<int, SeenProcess> workers;
};

/// A keeper whose agent was killed is the child of init, or of the user's own service manager, also
/// when the daemon's next session has adopted its workers.
std::optional<SeenProcess> AgentOf(const SeenProcess& keeper, const ByPid& seen,
                                   const JobMarks& marks) {
  const auto parent = seen.find(keeper.parent);
  const bool is_known =
      marks.launchers.count(keeper.parent) > 0 || keeper.parent == marks.coordinator_pid;
  if (parent != seen.end() && (is_known || IsAgentName(parent->second.name))) {
    return parent->second;
  }
  const auto session = std::find_if(seen.begin(), seen.end(), [&keeper](const auto& entry) {
    return entry.second.name == kAgentName && !entry.second.folder.empty() &&
           entry.second.folder == keeper.folder;
  });
  return session != seen.end() ? std::optional(session->second) : std::nullopt;
}

/// In order of their first ranks.
std::vector<Household> FindHouseholds(const ByPid& seen, const JobMarks& marks) {
  std::map<int64_t, Household> by_keeper;
  for (const auto& [pid, process] : seen) {
    const auto keeper = seen.find(process.parent);
    if (process.worker.has_value() && process.worker->job_id == marks.job_id &&
        keeper != seen.end() && IsKeeperName(keeper->second.name)) {
      by_keeper[keeper->first].workers[process.worker->rank] = process;
    }
  }
  std::vector<Household> households;
  for (auto& [pid, household] : by_keeper) {
    household.keeper = seen.at(pid);
    household.agent = AgentOf(household.keeper, seen, marks);
    // With a launcher that was started here its keeper ends, too; a daemon's waits for another one.
    if (household.agent.has_value() || marks.launchers.empty()) {
      households.push_back(std::move(household));
    }
  }
  std::sort(households.begin(), households.end(), [](const Household& a, const Household& b) {
    return std::pair(a.workers.begin()->first, a.keeper.pid) <
           std::pair(b.workers.begin()->first, b.keeper.pid);
  });
  return households;
}

JobProcess Process(FaultTarget role, const SeenProcess& seen, int number) {
  return {.role = role, .pid = seen.pid, .start_ticks = seen.start_ticks, .number = number};
}

std::vector<JobProcess> MembersOf(const Household& household, int number, bool is_launcher) {
  std::vector<JobProcess> members{Process(FaultTarget::kKeeper, household.keeper, number)};
  if (household.agent.has_value()) {
    members.push_back(Process(FaultTarget::kAgent, *household.agent, number));
    members.back().is_session = !is_launcher && household.agent->name == kAgentName;
  }
  for (const auto& [rank, worker] : household.workers) {
    members.push_back(Process(FaultTarget::kWorker, worker, rank));
  }
  return members;
}

/// Gives numbers to those whose launchers have none.
class Numbers {
 public:
  explicit Numbers(const JobMarks& marks) : marks_(marks) {
    for (const auto& [pid, number] : marks.launchers) {
      taken_.insert(number);
    }
  }
  int Of(const Household& household) {
    const auto launcher = marks_.launchers.find(household.keeper.parent);
    if (launcher != marks_.launchers.end()) {
      return launcher->second;
    }
    while (taken_.count(next_) > 0) {
      ++next_;
    }
    return next_++;
  }

 private:
  const JobMarks& marks_;
  std::set<int> taken_;
  int next_ = 0;
};

}  // namespace

bool IsKeeperName(absl::string_view name) { return name == kKeeperName; }

bool IsAgentName(absl::string_view name) { return name == kLauncherName || name == kAgentName; }

std::string SessionFolderOf(absl::string_view command_line) {
  const std::vector<absl::string_view> words = absl::StrSplit(command_line, '\0');
  const auto option = std::find(words.begin(), words.end(), kSessionOption);
  return option != words.end() && std::next(option) != words.end() ? std::string(option[1]) : "";
}

std::optional<WorkerMarks> WorkerMarksOf(absl::string_view environment) {
  std::optional<std::string> job_id;
  std::optional<int> rank = 0;  // of a worker that is alone and is not told
  for (const absl::string_view variable : absl::StrSplit(environment, '\0')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(variable, absl::MaxSplits('=', 1));
    int number = 0;
    if (parts.first == contract::kEnvJobId) {
      job_id = std::string(parts.second);
    } else if (parts.first == contract::kEnvRank) {
      rank = absl::SimpleAtoi(parts.second, &number) ? std::optional(number) : std::nullopt;
    }
  }
  return job_id.has_value() && rank.has_value()
             ? std::optional(WorkerMarks{.job_id = *std::move(job_id), .rank = *rank})
             : std::nullopt;
}

std::vector<JobProcess> JobProcessesAmong(const std::vector<SeenProcess>& seen,
                                          const JobMarks& marks) {
  std::vector<JobProcess> found;
  if (marks.job_id.empty()) {
    return found;
  }
  ByPid by_pid;
  for (const SeenProcess& process : seen) {
    by_pid[process.pid] = process;
  }
  std::set<int64_t> agents;
  Numbers numbers(marks);
  for (const Household& household : FindHouseholds(by_pid, marks)) {
    const bool is_launcher = marks.launchers.count(household.keeper.parent) > 0;
    for (const JobProcess& member : MembersOf(household, numbers.Of(household), is_launcher)) {
      if (member.role == FaultTarget::kAgent) {
        agents.insert(member.pid);
      }
      found.push_back(member);
    }
  }
  const auto coordinator = by_pid.find(marks.coordinator_pid);
  // Another process may have got its pid, and be a launcher of another job.
  if (coordinator == by_pid.end() ||
      coordinator->second.start_ticks != marks.coordinator_start_ticks) {
    return found;
  }
  found.push_back(Process(FaultTarget::kCoordinator, coordinator->second, -1));
  for (JobProcess& process : found) {
    process.is_both = process.pid == marks.coordinator_pid && agents.count(process.pid) > 0;
  }
  return found;
}

}  // namespace fsdprun::chaos
