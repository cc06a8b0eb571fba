#pragma once

#include <c10/core/Device.h>
#include <fsdp/fully_shard_options.h>

#include <memory>
#include <vector>

#include "fsdp_runtime/src/engine/shard_store.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// Whether `inner` is `outer` or below it.
bool contains(const std::shared_ptr<torch::nn::Module>& outer,
              const std::shared_ptr<torch::nn::Module>& inner);

/// The parameters at and below `modules` that fully_shard() with `options` makes a unit of, with
/// their first names: those that no unit owns yet and that are not to be ignored. Errors:
/// TORCH_CHECK on one that cannot be sharded, or not as it is to be, or that is shared with another
/// unit.
std::vector<NamedParameter> parameters_of_unit(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
    const FullyShardOptions& options);

/// Moves the buffers at and below `modules`, but for those in units, to where forward runs.
void move_buffers(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                  c10::Device device);

}  // namespace fsdp
