#pragma once

#include <fsdp/collectives.h>
#include <fsdp/device_graph.h>

#include <memory>

#include "fsdp_runtime/src/comm/nccl_entry.h"

namespace fsdp {

// The NCCL backend is a separate library, so that CPU training never loads CUDA. Loaded when it is
// first asked for, once, and never unloaded. cuda_device_count() asks it, too, and CUDA graphs are
// made there.

/// Errors: TORCH_CHECK if there is no driver or no such library; as MakeNcclCollectives.
std::shared_ptr<Collectives> make_nccl(const NcclFormation& formation);
/// Errors: TORCH_CHECK if no GPU can be used.
std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device);

}  // namespace fsdp
