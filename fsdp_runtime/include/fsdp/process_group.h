#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

/// This process's rank and the address of the store. Filled from RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RUN_ID and
/// FSDPRUN_GENERATION (or TORCHELASTIC_RESTART_COUNT), so it works under fsdprun, torchrun and by
/// hand.
struct FSDP_API ProcessGroupOptions {
  /// "auto": nccl if `device_type` is CUDA; else shm when all ranks are on one host; else gloo. Or
  /// one of those by name.
  std::string backend = "auto";
  /// Device type of the tensors.
  c10::DeviceType device_type = c10::DeviceType::CPU;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  /// This process serves the store itself (rank 0 by hand, or under a launcher whose agent does
  /// not).
  bool host_store = false;
  /// Key prefix in the store; contains the run and the generation so that no stale key can be read.
  std::string store_prefix = "fsdp";
  /// Of every collective; of the rendezvous until all ranks have arrived; and once more of
  /// connecting them (gloo, nccl). A rank that gives up ends it for all, and so does one that dies,
  /// once it has links with the others.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  /// Throws c10::Error naming the variable that is missing or malformed. A process without RANK is
  /// a world of one.
  static ProcessGroupOptions from_environment();
};

/// Ranks were given options that do not fit together; thrown on all ranks with the same values.
class FSDP_API OptionMismatch : public c10::Error {
 public:
  OptionMismatch(int64_t rank, std::string option, std::string value, std::string value_of_rank0);

  int64_t rank;        // the first that differs from rank 0
  std::string option;  // "backend" or "device_type"
  std::string value;
  std::string value_of_rank0;
};

/// Forms the process group; all ranks must call it. Blocks until all ranks have joined; a timeout
/// error names the missing ones. OptionMismatch: the backends as given, or the device types, are
/// not the same on all ranks, which would wait for each other in different places. A world of one
/// needs no store; its name() is "nccl" on a GPU, else "single". Device: nccl uses CUDA device
/// `local_rank`, makes it the current one, and sets in the environment, unless it is set,
/// NCCL_LAUNCH_ORDER_IMPLICIT=1, without which the two communicators of a group can deadlock, and
/// in any case, because launchers set the first one, TORCH_NCCL_ASYNC_ERROR_HANDLING=0 and
/// TORCH_NCCL_ENABLE_MONITORING=0, without which LibTorch
/// ends the process where the group would throw. Ranks on several hosts must reach each other at
/// any port: of the interface GLOO_SOCKET_IFNAME; with nccl else of NCCL_SOCKET_IFNAME, written as
/// for NCCL; else of that on the way to the master. A process may form several groups, in the same
/// order on all ranks. A store that rank 0 serves lives as long as the group, and what was split
/// from it or made by its shrink().
FSDP_API std::shared_ptr<Collectives> init_process_group(const ProcessGroupOptions& options);

/// How many GPUs this process can use; 0 without a driver or with a CPU build of LibTorch. With an
/// NVIDIA driver it loads LibTorch's CUDA libraries, which libfsdp does not link, so call it before
/// any other CUDA query to ATen. Warns if there is a driver but no usable GPU.
FSDP_API int64_t cuda_device_count();

}  // namespace fsdp
