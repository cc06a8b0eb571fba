#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/chaos/plan/victims.h"

namespace fsdprun::chaos {

/// How a job is told from others.
struct JobMarks {
  std::string run_id;
  /// 0: not known.
  int64_t coordinator_pid = 0;
  /// Launchers of its nodes that were started here: pid to number.
  std::map<int64_t, int> launchers;
};

/// The processes of a job on this machine, of this user alone: workers, by their environment and
/// their parent, a keeper; keepers, by their workers or their parent; agents, the parents of
/// keepers; the coordinator. Agents that were not started here are numbered by their first ranks.
/// Reads /proc. Thread: any.
std::vector<JobProcess> FindJobProcesses(const JobMarks& marks);

/// Whether `pid` is `ancestor` or descends from it.
bool DescendsFrom(int64_t pid, int64_t ancestor);

}  // namespace fsdprun::chaos
