#pragma once

#include <cstdint>
#include <vector>

#include "launcher/chaos/plan/households.h"

namespace fsdprun::chaos {

/// The processes of a job on this machine, of this user alone, without this process
/// (JobProcessesAmong()). Reads /proc. Thread: any.
std::vector<JobProcess> FindJobProcesses(const JobMarks& marks);

/// Whether `pid` is `ancestor` or descends from it.
bool DescendsFrom(int64_t pid, int64_t ancestor);

}  // namespace fsdprun::chaos
