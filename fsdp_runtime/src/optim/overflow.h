#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <memory>
#include <vector>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/optim/gradient_lists.h"

namespace fsdp {

// Answers are 1 or 0, [1], float32, on the gradients' device, where the host does not wait for it.

/// Whether an element is infinite or NaN. Reads the gradients once and writes none.
FSDP_API at::Tensor has_non_finite(const GradientsByType& gradients, c10::Device device);

/// The same of the gradients as they are, which it multiplies by `inv_scale`, one element, float32.
at::Tensor unscale(const GradientsByType& gradients, const at::Tensor& inv_scale);

/// The first of the units' groups on most ranks, copies counted, which is the same on all of them;
/// null: no parameters.
std::shared_ptr<ParamGroup> group_on_most_ranks(
    const std::vector<std::shared_ptr<ModuleState>>& units);

/// Whether it is found by some rank that has parts or copies of one of the groups. Collective.
at::Tensor found_by_some(at::Tensor found, const std::vector<std::shared_ptr<ParamGroup>>& groups);

/// Whether it is found by some rank of `comm`. Collective.
void share_found(at::Tensor& found, Collectives& comm);

}  // namespace fsdp
