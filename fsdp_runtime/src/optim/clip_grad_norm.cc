#include <ATen/ATen.h>
#include <fsdp/fully_shard.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {
namespace {

/// The groups whose shards are on the ranks of one communicator.
struct Shards {
  Collectives* comm = nullptr;
  at::Tensor square_sum;  // in double: there may be thousands of shards of different magnitude
};

Shards& shards_on(Collectives& comm, const at::TensorOptions& options, std::vector<Shards>& all) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&comm](const Shards& shards) { return shards.comm == &comm; });
  if (found != all.end()) {
    return *found;
  }
  all.push_back({&comm, at::zeros({1}, options.dtype(at::kDouble))});
  return all.back();
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
    Shards joined = *largest;
    joined.square_sum = at::zeros_like(joined.square_sum);
    for (const Shards& shards : all) {
      joined.square_sum.add_(shards.square_sum);
    }
    all = {joined};
  }
  std::vector<WorkPtr> works;
  works.reserve(all.size());
  for (const Shards& shards : all) {
    shards.comm->name_next("the gradient norm");
    works.push_back(shards.comm->all_reduce(shards.square_sum, ReduceOp::kSum, Lane::kReduce));
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

}  // namespace

at::Tensor clip_grad_norm_(const FSDPModule& root, double max_norm) {
  TORCH_CHECK(root, "clip_grad_norm_: empty FSDPModule handle");
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<Shards> all;
  for (const FSDPModule& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      Shards& shards = shards_on(group->comm(), group->shard().options(), all);
      if (group->gradient().defined()) {
        const at::Tensor norm = at::linalg_vector_norm(
            group->gradient(), 2, at::OptionalIntArrayRef(), false, at::kFloat);
        shards.square_sum.add_(norm.to(at::kDouble).square());
        gradients.push_back(group->gradient());
      }
    }
  }
  TORCH_CHECK(!all.empty(), "clip_grad_norm_: no parameters below the given module");
  const at::Tensor total_norm = sum_over_ranks(all).sqrt().to(at::kFloat).squeeze(0);
  if (max_norm > 0) {
    const at::Tensor factor = (max_norm / (total_norm + 1e-6)).clamp_max(1.0);
    // A NaN norm makes every gradient NaN, as in torch: the error must stay visible.
    const bool leaves_all = total_norm.is_cpu() && factor.item<float>() >= 1.0F;
    if (!leaves_all) {
      for (at::Tensor& gradient : gradients) {
        gradient.mul_(factor);
      }
    }
  }
  return total_norm;
}

}  // namespace fsdp
