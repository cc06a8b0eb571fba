#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/run/numa_binding.h"

namespace fsdprun {

/// Where this machine's files are looked for: FSDPRUN_TEST_ROOT, which tests set, else "".
std::string MachineRoot(const Environment& environment);

/// The CPUs that this process may use, ascending. With a `root`, those that a file there says.
std::vector<int> UsableCpus(const std::string& root);

/// Where the CPUs in `usable` are. What the kernel does not tell is taken for one node, socket or
/// cache.
CpuTopology ReadTopology(const std::string& root, const std::vector<int>& usable);

/// The CPUs of each worker, by local rank, as --numa-binding asks; empty without. Errors: as
/// BindCpus() and NumaNodesOfGpus().
absl::StatusOr<std::vector<std::vector<int>>> WorkerCpus(const LaunchPlan& plan,
                                                         const Environment& environment);

/// As a line of --dry-run: `worker_cpus: 0-3 4-7`, by local rank; empty without a binding.
std::string DescribeWorkerCpus(const std::vector<std::vector<int>>& worker_cpus);

}  // namespace fsdprun
