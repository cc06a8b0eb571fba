#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/param_group.h"

namespace fsdp {

/// Uninitialised memory for the whole of parameter `index`, flat: on the CPU, or on the group's
/// device.
at::Tensor empty_whole(const ParamGroup& group, size_t index, at::ScalarType dtype, bool on_cpu);

/// This rank's parts of the parameters: flat, views, by parameter.
std::vector<at::Tensor> parameter_parts(const ParamGroup& group);

/// Gathers tensors that are divided like the parameters of `group`, a piece of all shards after the
/// other. `parts` has this rank's, by parameter, undefined where there is none; `whole` what this
/// rank keeps, from empty_whole(), undefined where that is nothing. Collective over the group: an
/// all-gather for each piece. Memory: a piece, 64 MiB over all ranks, however large the parameters.
void gather_whole(const ParamGroup& group, const std::vector<at::Tensor>& parts,
                  const std::vector<at::Tensor>& whole, at::ScalarType dtype,
                  const std::string& purpose);

/// In new memory, on the CPU or where it is.
at::Tensor copy_of(const at::Tensor& tensor, bool to_cpu);

}  // namespace fsdp
