#pragma once

/// @file
/// How processes find each other and become the ranks of a group.

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fsdp {

/// @addtogroup start
/// @{

/// This process's rank and the address of the store. As it is: a world of one on the CPU.
struct FSDP_API ProcessGroupOptions {
  /// "auto": nccl if `device_type` is CUDA; else shm when all ranks are on one host; else gloo. Or
  /// one of those by name.
  std::string backend = "auto";
  /// Device type of the tensors.
  c10::DeviceType device_type = c10::DeviceType::CPU;
  int64_t rank = 0;        ///< From 0 to `world_size` - 1.
  int64_t world_size = 1;  ///< How many processes there are.
  int64_t local_rank = 0;  ///< On this host; with nccl the number of the CUDA device.
  std::string master_addr = "127.0.0.1";  ///< Host of the store, as this process reaches it.
  /// Of the store. A world of one uses none, unless it communicates_alone.
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
  /// A group of one rank, this one or a part that split() or shrink() makes of it, communicates
  /// with itself through the backend, as several ranks would, instead of copying: for tests of a
  /// backend, and measurements of what it costs, where there is one rank, or one GPU. It meets in
  /// the store like others: a world of one serves one for itself if `master_port` is 0, and else
  /// connects to that port unless `host_store` is set. The same on all ranks. What units need no
  /// communication for at one rank, they do without it.
  bool communicates_alone = false;

  /// Options from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT,
  /// TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RUN_ID and FSDPRUN_GENERATION (or
  /// TORCHELASTIC_RESTART_COUNT), so it works under fsdprun, torchrun and by hand. A process
  /// without RANK is a world of one; LOCAL_RANK is RANK unless it is set, as on one host.
  ///
  /// `device_type`: that of the tensors. Unset: CUDA if this process can use a GPU, which loads
  /// CUDA to find out where there is a driver (see cuda_device_count()), else the CPU. An empty
  /// CUDA_VISIBLE_DEVICES hides GPUs from it, as from PyTorch.
  ///
  /// Errors: TORCH_CHECK naming the variable that is missing or malformed; and, with `device_type`
  /// unset, if this host has GPUs, but none for LOCAL_RANK.
  static ProcessGroupOptions from_environment(
      std::optional<c10::DeviceType> device_type = std::nullopt);
};

/// Ranks were given options that do not fit together; thrown on all ranks with the same values.
class FSDP_API OptionMismatch : public c10::Error {
 public:
  /// For libfsdp's own parts.
  OptionMismatch(int64_t rank, std::string option, std::string value, std::string value_of_rank0);

  int64_t rank;                ///< The first that differs from rank 0.
  std::string option;          ///< "backend" or "device_type".
  std::string value;           ///< Of `rank`.
  std::string value_of_rank0;  ///< What rank 0 was given.
};

/// Forms the process group; all ranks must call it. Blocks until all ranks have joined.
///
/// ```cpp
/// // as the launcher says, on a GPU if there is one
/// const auto world = fsdp::init_process_group();
/// model->to(world->device());
/// fsdp::fully_shard(model);
/// ```
///
/// The group lives as long as what this returns, and the meshes and modules that are made with it.
/// default_process_group() finds it.
///
/// A world of one needs no store; its name() is "nccl" on a GPU, else "single" (but see
/// ProcessGroupOptions::communicates_alone). A process may form several groups, in the same order
/// on all ranks. A store that rank 0 serves lives as long as the group, and what was split from it
/// or made by its shrink().
///
/// Device: nccl uses CUDA device `local_rank`, makes it the current one, and sets in the
/// environment, unless they are set, NCCL_LAUNCH_ORDER_IMPLICIT=1, without which the two
/// communicators of a group can deadlock, and TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=0, without which
/// the end of a group that has failed takes a minute; and in any case, because launchers set the
/// first one, TORCH_NCCL_ASYNC_ERROR_HANDLING=0 and TORCH_NCCL_ENABLE_MONITORING=0, without which
/// LibTorch ends the process where the group would throw.
///
/// Network: ranks on several hosts must reach each other at any port: of the interface
/// GLOO_SOCKET_IFNAME; with nccl else of NCCL_SOCKET_IFNAME, written as for NCCL; else of that on
/// the way to the master.
///
/// Errors: c10::Error if ranks have not come within the timeout (it names them), if one of them has
/// given up, if the store cannot be reached or the backend cannot be used here; OptionMismatch if
/// the backends as given, or the device types, are not the same on all ranks, which would wait for
/// each other in different places; TORCH_CHECK on an option out of its range.
[[nodiscard]] FSDP_API std::shared_ptr<Collectives> init_process_group(
    const ProcessGroupOptions& options = ProcessGroupOptions::from_environment());

/// The group of all ranks that this process is in (PyTorch: dist.group.WORLD): the one that
/// init_process_group() has formed, or the one that Collectives::shrink() has made of that, or of a
/// part of it. Not kept alive by this: it is there for as long as somebody has it. Local; any
/// thread; of the process, also where ranks are threads.
///
/// Errors: TORCH_CHECK if no group has been formed, or it has been destroyed, or there are several,
/// of which only the caller can say which one is meant.
FSDP_API std::shared_ptr<Collectives> default_process_group();

/// How many GPUs this process can use; 0 without a driver or with a CPU build of LibTorch. With an
/// NVIDIA driver it loads LibTorch's CUDA libraries, which libfsdp does not link, so call it before
/// any other CUDA query to ATen. Warns if there is a driver but no usable GPU. Does not throw for
/// want of a GPU.
FSDP_API int64_t cuda_device_count();

/// @}

}  // namespace fsdp
