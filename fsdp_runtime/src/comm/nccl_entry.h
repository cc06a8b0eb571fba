#pragma once

#include <fsdp/collectives.h>
#include <fsdp/device_graph.h>
#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>

#include "fsdp_runtime/src/comm/membership.h"
#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

struct NcclFormation {
  std::shared_ptr<StoreClient> store;  // null for a world of one
  ProcessGroupOptions options;
  GroupPlace place = {};
  /// What an earlier call has made, of the group that is divided; null: none. All of its ranks make
  /// a part at the same time, also those that are alone in theirs.
  std::shared_ptr<Collectives> whole = {};
};

/// Entry point of the NCCL backend's library, looked up by name. The caller owns the result. Throws
/// c10::Error without a usable GPU.
using MakeNcclCollectives = std::shared_ptr<Collectives>* (*)(const NcclFormation& formation);
inline constexpr char kNcclEntry[] = "fsdp_make_nccl_collectives";
/// How many GPUs this process sees.
using CountCudaDevices = int64_t (*)();
inline constexpr char kCountCudaDevicesEntry[] = "fsdp_count_cuda_devices";
/// The caller owns the result. Errors: as make_device_graph's.
using MakeCudaGraph = DeviceGraph* (*)(c10::Device device);
inline constexpr char kCudaGraphEntry[] = "fsdp_make_cuda_graph";
inline constexpr char kNcclLibrary[] = "libfsdp_nccl.so";

}  // namespace fsdp
