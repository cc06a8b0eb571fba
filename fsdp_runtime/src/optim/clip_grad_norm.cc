#include <ATen/ATen.h>
#include <fsdp/fully_shard.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/optim/gradient_lists.h"

namespace fsdp {
namespace {

/// The groups whose shards are on the ranks of one communicator, with copies on those of another.
struct Shards {
  std::shared_ptr<Collectives> comm;
  std::shared_ptr<Collectives> replicas;  // null: there are no copies
  GradientsByType gradients = {};
  at::Tensor square_sum = {};  // in double: there may be thousands of different magnitude
};

Shards& shards_of(const ParamGroup& group, std::vector<Shards>& all) {
  const auto found = std::find_if(all.begin(), all.end(), [&group](const Shards& shards) {
    return shards.comm == group.comm() && shards.replicas == group.replicas();
  });
  if (found != all.end()) {
    return *found;
  }
  all.push_back({group.comm(), group.replicas()});
  return all.back();
}

/// Sum of the squares of all elements, [1], without a wait for the device.
at::Tensor square_sum_of(const GradientsByType& gradients, c10::Device device) {
  std::vector<at::Tensor> norms;
  for (const auto& [dtype, list] : gradients) {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const std::vector<at::Tensor> more = at::_foreach_norm(list, 2, wide);
    norms.insert(norms.end(), more.begin(), more.end());
  }
  if (gradients.contains(at::kDouble)) {
    for (at::Tensor& norm : norms) {
      norm = norm.to(at::kDouble);
    }
  }
  if (norms.empty()) {
    return at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(device));
  }
  const at::Tensor squares = at::stack(norms).to(at::kDouble).square();
  // The last of the running sums: on the CPU it does not depend on how a sum is vectorized.
  return device.is_cpu() ? squares.cumsum(0).narrow(0, squares.numel() - 1, 1)
                         : squares.sum(0, /*keepdim=*/true);
}

/// How many ranks of `group` are in `largest`.
int64_t ranks_within(const Collectives& largest, const Collectives& group) {
  const std::vector<int64_t> in = largest.world_ranks();
  const std::vector<int64_t> ranks = group.world_ranks();
  return std::count_if(ranks.begin(), ranks.end(), [&in](int64_t rank) {
    return std::find(in.begin(), in.end(), rank) != in.end();
  });
}

/// The sum of all over the ranks of `largest`, each of the copies that it has counted once.
Shards join(const std::vector<Shards>& all, const Shards& largest) {
  Shards joined = largest;
  joined.square_sum = at::zeros_like(largest.square_sum);
  for (const Shards& shards : all) {
    const bool has_copies = shards.comm != largest.comm && shards.replicas;
    const int64_t copies = has_copies ? ranks_within(*largest.comm, *shards.replicas) : 1;
    joined.square_sum.add_(shards.square_sum / static_cast<double>(copies));
  }
  return joined;
}

/// If communicators differ in size, the largest sums all shards: the smaller ones would give each
/// of their sets of ranks a total of its own, and parameters that all ranks share would be scaled
/// differently. Otherwise each sums its own. Every rank has seen the same units in the same order.
at::Tensor sum_over_ranks(std::vector<Shards> all) {
  const auto is_smaller = [](const Shards& a, const Shards& b) {
    return a.comm->size() < b.comm->size();
  };
  // The first of the largest, which is the same on all ranks.
  const auto largest = std::max_element(all.begin(), all.end(), is_smaller);
  if (is_smaller(*std::min_element(all.begin(), all.end(), is_smaller), *largest)) {
    all = {join(all, *largest)};
  }
  std::vector<WorkPtr> works;
  works.reserve(all.size());
  for (const Shards& shards : all) {
    works.push_back(shards.comm->all_reduce(shards.square_sum, ReduceOp::kSum,
                                            {Lane::kReduce, "the gradient norm"}));
  }
  at::Tensor total = all.front().square_sum;
  for (size_t i = 0; i < all.size(); ++i) {
    works[i]->wait();
    if (i > 0) {
      total.add_(all[i].square_sum);
    }
  }
  return total;
}

void scale(const std::vector<Shards>& all, const at::Tensor& factor) {
  for (const Shards& shards : all) {
    for (const auto& [dtype, list] : shards.gradients) {
      // On a device only a factor of the same dtype lets one kernel do all.
      at::_foreach_mul_(list, factor.is_cpu() ? factor : factor.to(dtype));
    }
  }
}

}  // namespace

at::Tensor clip_grad_norm_(const FSDPModule& root, double max_norm) {
  TORCH_CHECK(root, "clip_grad_norm_: empty FSDPModule handle");
  at::NoGradGuard no_grad;
  std::vector<Shards> all;
  for (const FSDPModule& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      add_gradients(*group, shards_of(*group, all).gradients);
    }
  }
  TORCH_CHECK(!all.empty(), "clip_grad_norm_: no parameters below the given module");
  for (Shards& shards : all) {
    shards.square_sum = square_sum_of(shards.gradients, shards.comm->device());
  }
  const at::Tensor total_norm = sum_over_ranks(all).sqrt().to(at::kFloat).squeeze(0);
  if (max_norm > 0) {
    const at::Tensor factor = (max_norm / (total_norm + 1e-6)).clamp_max(1.0);
    // A NaN norm makes every gradient NaN, as in torch: the error must stay visible.
    const bool leaves_all = total_norm.is_cpu() && factor.item<float>() >= 1.0F;
    if (!leaves_all) {
      scale(all, factor);
    }
  }
  return total_norm;
}

}  // namespace fsdp
