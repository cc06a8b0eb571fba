#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/chaos/plan/victims.h"

namespace fsdprun::chaos {

/// How a job is told from others.
struct JobMarks {
  /// FSDPRUN_JOB_ID of its workers. Empty: not known yet, so nobody is found. A run id would not
  /// do: jobs that name none have the same.
  std::string job_id;
  /// The process that has answered for the job last, which may have ended since; 0: not known.
  int64_t coordinator_pid = 0;
  uint64_t coordinator_start_ticks = 0;
  /// Launchers of its nodes that were started here: pid to number.
  std::map<int64_t, int> launchers;
};

/// What the environment of a worker says.
struct WorkerMarks {
  std::string job_id;
  int rank = 0;

  bool operator==(const WorkerMarks&) const = default;
};

/// `environment`: variables, each with a zero byte at its end. Nothing if it is no worker's. Pure.
std::optional<WorkerMarks> WorkerMarksOf(absl::string_view environment);

/// A process of this user that lives.
struct SeenProcess {
  int64_t pid = 0;
  int64_t parent = 0;
  uint64_t start_ticks = 0;
  /// Its name, which the kernel shortens to 15 bytes.
  std::string name;
  /// Of a child of a keeper, if it is a worker.
  std::optional<WorkerMarks> worker;
  /// Of a session of a daemon, and of a keeper that one has started: the session's.
  std::string folder;
};

/// Whether the children of a process with that name may be workers. Pure.
bool IsKeeperName(absl::string_view name);

/// Whether a process with that name may be an agent. Pure.
bool IsAgentName(absl::string_view name);

/// What a session of a daemon has for its folder; empty for other programs. `command_line`: words,
/// each with a zero byte at its end. Pure.
std::string SessionFolderOf(absl::string_view command_line);

/// Those of a job: workers, by their environment and their parent, a keeper; keepers, by their
/// workers; agents, which are programs of ours and the parents of such keepers, or have adopted
/// them; the coordinator.
/// Whoever has no worker has no part in the world, and is no victim. Agents that were not started
/// here are numbered by the first ranks of their workers. `seen`: without this program itself.
/// Pure.
std::vector<JobProcess> JobProcessesAmong(const std::vector<SeenProcess>& seen,
                                          const JobMarks& marks);

}  // namespace fsdprun::chaos
