#pragma once

#include <fsdp/collectives.h>
#include <fsdp/process_group.h>

#include <cstdint>
#include <memory>

#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// Entry point of the NCCL backend's library, looked up by name. `store` is null for a world of
/// one. The caller owns the result. Throws c10::Error without a usable GPU.
using MakeNcclCollectives =
    std::shared_ptr<Collectives>* (*)(const std::shared_ptr<StoreClient>& store,
                                      const ProcessGroupOptions& options);
inline constexpr char kNcclEntry[] = "fsdp_make_nccl_collectives";
/// How many GPUs this process sees.
using CountCudaDevices = int64_t (*)();
inline constexpr char kCountCudaDevicesEntry[] = "fsdp_count_cuda_devices";
inline constexpr char kNcclLibrary[] = "libfsdp_nccl.so";

}  // namespace fsdp
