#include <c10/util/Exception.h>
#include <fsdp/process_group.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "fsdp_runtime/src/comm/device_choice.h"

namespace fsdp {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

int64_t parse(const char* name, const std::string& value, int64_t smallest, int64_t largest) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  TORCH_CHECK(error == std::errc() && stop == end && number >= smallest && number <= largest,
              "environment: ", name, " is '", value, "'; a number from ", smallest, " to ", largest,
              " expected");
  return number;
}

int64_t required(const char* name, int64_t smallest, int64_t largest) {
  const auto value = variable(name);
  TORCH_CHECK(value, "environment: RANK is set but ", name,
              " is not; start the program with fsdprun or torchrun, or set RANK, WORLD_SIZE, "
              "MASTER_ADDR and MASTER_PORT");
  return parse(name, *value, smallest, largest);
}

// A restarted world may use the store of its predecessor, so the keys contain what tells them
// apart.
std::string prefix_of_this_world() {
  const auto run = variable("TORCHELASTIC_RUN_ID");
  const std::string prefix = run ? "fsdp/" + *run : "fsdp";
  if (const auto generation = variable("FSDPRUN_GENERATION")) {
    return prefix + "/generation" + *generation;
  }
  if (const auto restarts = variable("TORCHELASTIC_RESTART_COUNT")) {
    return prefix + "/restart" + *restarts;
  }
  return prefix;
}

}  // namespace

c10::DeviceType choose_device_type(int64_t gpus, int64_t local_rank) {
  if (gpus == 0) {
    return c10::DeviceType::CPU;
  }
  TORCH_CHECK(local_rank < gpus, "environment: LOCAL_RANK is ", local_rank, ", and this host has ",
              gpus, gpus == 1 ? " GPU" : " GPUs",
              " that can be used; start one process per GPU, each of which sees all of them "
              "(Slurm: --gpus-per-node, not --gpus-per-task), or train on the CPU: "
              "ProcessGroupOptions::from_environment(torch::kCPU), or CUDA_VISIBLE_DEVICES set to "
              "nothing");
  return c10::DeviceType::CUDA;
}

ProcessGroupOptions ProcessGroupOptions::from_environment(
    std::optional<c10::DeviceType> device_type) {
  ProcessGroupOptions options;
  options.store_prefix = prefix_of_this_world();
  if (variable("RANK")) {
    options.world_size = required("WORLD_SIZE", 1, 1 << 20);
    options.rank = required("RANK", 0, options.world_size - 1);
  }
  const auto local_rank = variable("LOCAL_RANK");
  options.local_rank = local_rank ? parse("LOCAL_RANK", *local_rank, 0, 4095) : options.rank;
  // Counted only if it matters: that loads CUDA.
  options.device_type =
      device_type ? *device_type : choose_device_type(cuda_device_count(), options.local_rank);
  if (options.world_size == 1) {
    return options;
  }
  const auto address = variable("MASTER_ADDR");
  TORCH_CHECK(address, "environment: WORLD_SIZE is ", options.world_size,
              " but MASTER_ADDR is not set; it names the host of the store");
  options.master_addr = *address;
  options.master_port = static_cast<int>(required("MASTER_PORT", 1, 65535));
  // torchrun's rule: the agent serves the store if TORCHELASTIC_USE_AGENT_STORE says so, else rank
  // 0 does.
  options.host_store =
      options.rank == 0 && variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") != "True";
  return options;
}

}  // namespace fsdp
