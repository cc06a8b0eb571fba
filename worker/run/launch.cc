#include "worker/run/launch.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "fsdp_runtime/store/store_client.h"
#include "worker/checkpoint/exchange.h"

namespace fsdprun::worker {
namespace {

// Of a launch: its later ones are restarts.
constexpr uint64_t kFirstGeneration = 1;
constexpr auto kStoreTimeout = std::chrono::seconds(30);

std::string RandomId() {
  std::random_device entropy;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", entropy(), entropy());
  return text;
}

struct Answer {
  std::string id;  // empty: the store does not answer
  bool is_new = false;
};

Answer AskStore(const WorkerEnvironment& environment) {
  try {
    fsdp::StoreClient store(environment.master_addr, environment.master_port, kStoreTimeout);
    const std::string mine = RandomId();
    const std::string found =
        store.compare_set("fsdp-train/launch/" + environment.run_id, "", mine);
    return {found, found == mine};
  } catch (const fsdp::StoreError&) {
    return {};
  }
}

LaunchIdentity Identify(const WorkerEnvironment& environment) {
  LaunchIdentity identity;
  checkpoint::Launch& launch = identity.launch;
  launch.job_id = environment.job_id;
  launch.is_restart = environment.generation > kFirstGeneration;
  if (!environment.job_id.empty()) {
    return identity;  // Its restarts may be those of earlier launches: a requeued job of Slurm.
  }
  launch.is_restart = launch.is_restart || environment.restart_count > 0;
  const Answer answer = environment.uses_agent_store && environment.master_port > 0
                            ? AskStore(environment)
                            : Answer{};
  if (!answer.id.empty()) {
    launch.job_id = "torchrun-" + environment.run_id + "-" + answer.id;
  }
  const bool is_found = !answer.id.empty() && !answer.is_new;
  identity.has_lost_track = launch.is_restart && !is_found;
  launch.is_restart = launch.is_restart || is_found;
  return identity;
}

}  // namespace

LaunchIdentity IdentifyLaunch(const WorkerEnvironment& environment,
                              const checkpoint::Group& group) {
  const bool is_rank0 = group.collectives->rank() == 0;
  if (!environment.job_id.empty()) {
    return Identify(environment);
  }
  // What rank 0 knows, because agents may count restarts differently.
  const LaunchIdentity mine = is_rank0 ? Identify(environment) : LaunchIdentity{};
  const std::string text =
      checkpoint::BroadcastText(group, std::string(mine.launch.is_restart ? "R" : "-") +
                                           (mine.has_lost_track ? "L" : "-") + mine.launch.job_id);
  return {{text.substr(2), text[0] == 'R'}, text[1] == 'L'};
}

}  // namespace fsdprun::worker
