#include "agent/process/worker_environment.h"

#include <vector>

#include "proto/lone_worker.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

constexpr char kCudaVisibleDevices[] = "CUDA_VISIBLE_DEVICES";
constexpr char kSignalsToHandle[] = "TORCHELASTIC_SIGNALS_TO_HANDLE";

/// The worker's only device: its entry of the launcher's list, or its local rank when there is no
/// list.
std::string VirtualDevice(const std::map<std::string, std::string>& environment, int local_rank) {
  const auto it = environment.find(kCudaVisibleDevices);
  if (it == environment.end()) {
    return std::to_string(local_rank);
  }
  std::vector<std::string> devices(1);
  for (const char c : it->second) {
    if (c == ',') {
      devices.emplace_back();
    } else if (c != ' ') {
      devices.back().push_back(c);
    }
  }
  const auto index = static_cast<size_t>(local_rank);
  return index < devices.size() ? devices[index] : std::to_string(local_rank);
}

/// What is left then is as without a launcher, but for what a worker may ignore.
void RemoveRanksAndMeeting(std::map<std::string, std::string>& environment) {
  for (const char* name :
       {contract::kEnvRank, contract::kEnvLocalRank, contract::kEnvWorldSize,
        contract::kEnvLocalWorldSize, contract::kEnvGroupRank, contract::kEnvGroupWorldSize,
        contract::kEnvRoleRank, contract::kEnvRoleWorldSize, contract::kEnvRoleName,
        contract::kEnvMasterAddr, contract::kEnvMasterPort, contract::kEnvRunId,
        contract::kEnvUseAgentStore}) {
    environment.erase(name);
  }
}

}  // namespace

std::string WorkerJobId(const std::string& run_id, const std::string& launch_id) {
  constexpr size_t kMaxPartBytes = 40;
  std::string id = run_id.substr(0, kMaxPartBytes) + "-" + launch_id.substr(0, kMaxPartBytes);
  for (char& c : id) {
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    c = is_plain ? c : '-';
  }
  return id;
}

WorkerVariables BuildWorkerEnvironment(
    const std::map<std::string, std::string>& launcher_environment, const WorkerPlace& place,
    const WorkerSettings& settings) {
  WorkerVariables result{.environment = launcher_environment};
  auto& env = result.environment;
  env[contract::kEnvRank] = std::to_string(place.rank);
  env[contract::kEnvLocalRank] =
      std::to_string(settings.has_virtual_local_rank ? 0 : place.local_rank);
  env[contract::kEnvWorldSize] = std::to_string(place.world_size);
  env[contract::kEnvLocalWorldSize] = std::to_string(place.local_world_size);
  env[contract::kEnvGroupRank] = std::to_string(place.group_rank);
  env[contract::kEnvGroupWorldSize] = std::to_string(place.group_world_size);
  env[contract::kEnvRoleRank] = std::to_string(place.role_rank);
  env[contract::kEnvRoleWorldSize] = std::to_string(place.role_world_size);
  env[contract::kEnvRoleName] = place.role_name;
  env[contract::kEnvMasterAddr] = settings.master_addr;
  env[contract::kEnvMasterPort] = std::to_string(settings.master_port);
  env[contract::kEnvRestartCount] = std::to_string(settings.restart_count);
  env[contract::kEnvMaxRestarts] = std::to_string(settings.max_restarts);
  env[contract::kEnvRunId] = settings.run_id;
  env[contract::kEnvUseAgentStore] = settings.uses_agent_store ? "True" : "False";
  env[contract::kEnvErrorFile] = settings.error_file;
  env[contract::kEnvGeneration] = std::to_string(settings.generation);
  env[contract::kEnvJobId] = settings.job_id;
  env.erase(contract::kEnvControlFd);
  env.erase(contract::kEnvProgressView);
  env.erase(contract::kEnvVitalsFile);
  if (!settings.vitals_file.empty()) {
    env[contract::kEnvVitalsFile] = settings.vitals_file;
  }
  if (!settings.progress_view.empty()) {
    env[contract::kEnvProgressView] = settings.progress_view;
  }
  if (!settings.signals_to_handle.empty()) {
    env[kSignalsToHandle] = settings.signals_to_handle;
  }
  if (settings.has_virtual_local_rank) {
    env[kCudaVisibleDevices] = VirtualDevice(launcher_environment, place.local_rank);
  }
  env.emplace(contract::kEnvNcclAsyncErrorHandling, "1");
  if (settings.omp_threads > 0) {
    env.emplace(contract::kEnvOmpNumThreads, std::to_string(settings.omp_threads));
  } else if (place.local_world_size > 1) {
    result.defaulted_omp_threads = env.emplace(contract::kEnvOmpNumThreads, "1").second;
  }
  if (env.erase(contract::kEnvLoneWorkerIsPlain) > 0 && place.world_size == 1) {
    RemoveRanksAndMeeting(env);
  }
  return result;
}

}  // namespace fsdprun
