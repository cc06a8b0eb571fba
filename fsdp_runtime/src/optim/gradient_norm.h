#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <fsdp/collectives.h>

#include <memory>
#include <vector>

#include "fsdp_runtime/src/optim/gradient_lists.h"

namespace fsdp {

/// The gradients of groups whose shards are on the ranks of one communicator, with copies on those
/// of another.
struct ShardedGradients {
  std::shared_ptr<Collectives> comm;
  std::shared_ptr<Collectives> replicas;  // null: there are no copies
  c10::Device device;                     // of the gradients
  GradientsByType lists = {};
};

/// The `norm_type`-norm, above 0 or infinite, of all gradients on all ranks, 0-dim, float32, on the
/// device of the first; see get_total_norm(). Every rank has seen the same units in the same order.
/// Collective.
at::Tensor norm_over_ranks(const std::vector<ShardedGradients>& all, double norm_type);

}  // namespace fsdp
