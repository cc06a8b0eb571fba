#pragma once

#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// Where a CPU is. A physical core and a cache are named by the lowest CPU that belongs to them.
struct CpuPlace {
  int node = 0;
  int socket = 0;
  int core = 0;
  /// The CPUs that share its largest cache: a core complex.
  int complex = 0;
};

/// The CPUs that this process may use, by number.
using CpuTopology = std::map<int, CpuPlace>;

/// The CPUs of each worker, by local rank, ascending. `gpu_nodes`: the NUMA nodes of the visible
/// GPUs, of which worker n uses the n-th, as torchrun assumes. Without GPUs each worker has its
/// share of the cores, in the order of the nodes, and is treated as a GPU on the node where that
/// begins. Pure. Errors: OUT_OF_RANGE where a worker has no GPU, no CPU or no core of its own.
absl::StatusOr<std::vector<std::vector<int>>> BindCpus(const CpuTopology& topology,
                                                       NumaBinding binding, int workers,
                                                       const std::vector<int>& gpu_nodes);

}  // namespace fsdprun
