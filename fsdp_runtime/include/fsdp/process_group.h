#pragma once

#include <c10/core/Device.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

/// Where this process stands and where the store is. Filled from RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RUN_ID and
/// FSDPRUN_GENERATION (or TORCHELASTIC_RESTART_COUNT), so it works under fsdprun, torchrun and by
/// hand.
struct FSDP_API ProcessGroupOptions {
  /// "auto": nccl if `device_type` is CUDA; else shm when all ranks are on one host; else gloo. Or
  /// one of those by name.
  std::string backend = "auto";
  /// Where the tensors will live.
  c10::DeviceType device_type = c10::DeviceType::CPU;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  /// This process serves the store itself (rank 0 by hand, or under a launcher whose agent does
  /// not).
  bool host_store = false;
  /// Key prefix in the store; carries the run and the generation so that no stale key can be read.
  std::string store_prefix = "fsdp";
  /// Bound of every wait of a collective and of the whole rendezvous.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  /// Throws c10::Error naming the variable that is missing or malformed. A process without RANK is
  /// a world of one.
  static ProcessGroupOptions from_environment();
};

/// Forms the process group; all ranks must call it. Blocks until everybody is there or the timeout
/// names who is not. A world of one needs neither store nor backend and is called "single". Device:
/// nccl takes CUDA device `local_rank` and makes it the current one. A process may form several
/// groups; all ranks form them in the same order. Memory of the store that rank 0 serves: as long
/// as the group.
FSDP_API std::shared_ptr<Collectives> init_process_group(const ProcessGroupOptions& options);

/// How many GPUs this process can use; 0 without a driver or with a CPU build of LibTorch. Where an
/// NVIDIA driver is present it loads LibTorch's CUDA half, which libfsdp does not link, so call it
/// before anything else asks ATen about CUDA. Warns when there is a driver but nothing to use it.
FSDP_API int64_t cuda_device_count();

}  // namespace fsdp
