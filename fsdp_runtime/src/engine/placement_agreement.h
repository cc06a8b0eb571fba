#pragma once

#include <fsdp/device_mesh.h>

#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/shard_store.h"

namespace fsdp {

/// TORCH_CHECK, on all ranks of `mesh`, if they do not divide the same parameters along the same
/// dimensions: shards of one size would be taken for each other. `modules`: their names, for the
/// message. Collective, and blocks the host; no-op for parameters that are divided as one range.
void check_same_placements(const std::vector<NamedParameter>& params, const DeviceMesh& mesh,
                           const std::string& modules);

}  // namespace fsdp
