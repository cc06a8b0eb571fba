#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace fsdprun {

/// Where one worker stands in the world of one generation; what the coordinator assigned.
struct WorkerPlace {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int group_rank = 0;
  int group_world_size = 1;
  int role_rank = 0;
  int role_world_size = 1;
  std::string role_name = "default";
};

/// What all workers of a generation share.
struct WorkerSettings {
  /// Numeric address and port of the generation's store.
  std::string master_addr;
  int master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id;
  /// The store already runs, workers are only clients (False: rank 0 hosts it).
  bool uses_agent_store = true;
  /// Empty when no log folder is kept.
  std::string error_file;
  uint64_t generation = 0;
  std::string job_id;
  /// "terminal", "plain", or empty to leave the variable out.
  std::string progress_view;
  /// Names of the signals the launcher handles ("SIGTERM,SIGINT,..."); empty leaves the variable
  /// out.
  std::string signals_to_handle;
  /// Each worker sees one device, as device 0, and LOCAL_RANK 0 (--virtual-local-rank).
  bool has_virtual_local_rank = false;
};

struct WorkerVariables {
  std::map<std::string, std::string> environment;
  /// OMP_NUM_THREADS was not set and became 1: worth one warning per job.
  bool defaulted_omp_threads = false;
};

/// What a job's workers share on a machine is named by this: equal on all nodes of one launch,
/// another for the next launch of the same run. Fits a file name. Pure.
std::string WorkerJobId(const std::string& run_id, const std::string& launch_id);

/// The environment of one worker: `launcher_environment` with torchrun's variables (and ours) laid
/// over it. Pure. OMP_NUM_THREADS becomes 1 only if it is unset and the node has several workers. A
/// control descriptor number inherited from an outer launcher is removed; the keeper adds the
/// worker's own.
WorkerVariables BuildWorkerEnvironment(
    const std::map<std::string, std::string>& launcher_environment, const WorkerPlace& place,
    const WorkerSettings& settings);

}  // namespace fsdprun
