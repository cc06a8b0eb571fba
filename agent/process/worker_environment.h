#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace fsdprun {

/// One worker's ranks in the world of one generation, as assigned by the coordinator.
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
  /// The worker's page (see proto/worker_vitals.h); empty leaves the variable out.
  std::string vitals_file;
  /// "terminal", "plain", or empty to leave the variable out.
  std::string progress_view;
  /// Names of the signals the launcher handles ("SIGTERM,SIGINT,..."); empty leaves the variable
  /// out.
  std::string signals_to_handle;
  /// Each worker sees one device, as device 0, and LOCAL_RANK 0 (--virtual-local-rank).
  bool has_virtual_local_rank = false;
  /// OMP_NUM_THREADS where it is not set; 0: 1 if the node has several workers, else not set.
  int omp_threads = 0;
};

struct WorkerVariables {
  std::map<std::string, std::string> environment;
  /// OMP_NUM_THREADS was not set and became 1; to be warned of once per job.
  bool defaulted_omp_threads = false;
};

/// Prefix for names that a job's workers share on a machine: equal on all nodes of one launch,
/// different for the next launch of the same run. A valid part of a file name. Pure.
std::string WorkerJobId(const std::string& run_id, const std::string& launch_id);

/// The environment of one worker: `launcher_environment` overridden by torchrun's variables and
/// ours. Pure. An OMP_NUM_THREADS that is set stays. A control descriptor number inherited from an
/// outer launcher is removed; the keeper adds the worker's own. So is an outer launcher's page.
/// A worker that is alone gets no ranks where kEnvLoneWorkerIsPlain is set (proto/lone_worker.h).
WorkerVariables BuildWorkerEnvironment(
    const std::map<std::string, std::string>& launcher_environment, const WorkerPlace& place,
    const WorkerSettings& settings);

}  // namespace fsdprun
