#include "worker/world/world.h"

#include <ATen/Parallel.h>
#include <fsdp/process_group.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "formats/json/strict_json.h"
#include "worker/world/agreement.h"
#include "worker/world/device.h"

namespace fsdprun::worker {
namespace {

/// The rest of what ranks must agree in is compared by the group, once there is one.
std::string Described(const fsdp::OptionMismatch& mismatch) {
  const bool is_backend = mismatch.option == "backend";
  return "rank " + std::to_string(mismatch.rank) + ": " +
         (is_backend ? "parallel.backend" : "the type of the device") + " is " + mismatch.value +
         ", rank 0 has " + mismatch.value_of_rank0 +
         (is_backend ? "; start all nodes with the same configuration"
                     : "; make GPUs visible on all nodes, or set parallel.backend to gloo or shm");
}

}  // namespace

World JoinRanks(const TrainConfig::Parallel& parallel) {
  auto options = fsdp::ProcessGroupOptions::from_environment(at::kCPU);  // chosen below
  options.backend = parallel.backend;
  options.timeout = std::chrono::seconds(parallel.timeout_seconds);
  World world;
  world.device = ChooseDevice(options);
  options.device_type = world.device.type();
  try {
    world.group = fsdp::init_process_group(options);
  } catch (const fsdp::OptionMismatch& mismatch) {
    throw DisagreementError(Described(mismatch));
  }
  return world;
}

void ArrangeRanks(int64_t copies, World& world) {
  const int64_t ranks = world.size();
  const auto type = world.device.type();
  if (copies == 1) {
    world.mesh = fsdp::init_device_mesh(type, {ranks}, {"dp_shard"}, world.group);
    return;
  }
  if (ranks % copies != 0) {
    throw ConfigError("parallel.dp_replicate is " + std::to_string(copies) + ", and " +
                      std::to_string(ranks) +
                      " ranks cannot be divided into as many equal parts; set it to a divisor of " +
                      std::to_string(ranks) + " or change the number of workers");
  }
  world.mesh = fsdp::init_device_mesh(type, {copies, ranks / copies}, {"dp_replicate", "dp_shard"},
                                      world.group);
}

void SetThreads(int64_t world_size) {
  const char* given = std::getenv("OMP_NUM_THREADS");
  const int threads = given != nullptr ? std::atoi(given) : 0;
  if (threads > 0) {
    at::set_num_threads(threads);
  } else if (world_size > 1) {
    at::set_num_threads(1);
  }
}

}  // namespace fsdprun::worker
