#include <ATen/ATen.h>
#include <fsdp/fully_shard.h>

#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {

at::Tensor clip_grad_norm_(const FSDPModule& root, double max_norm) {
  TORCH_CHECK(root, "clip_grad_norm_: empty FSDPModule handle");
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  Collectives* comm = nullptr;
  at::TensorOptions options;
  for (const FSDPModule& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      comm = &group->comm();
      options = group->shard().options();
      if (group->gradient().defined()) {
        gradients.push_back(group->gradient());
      }
    }
  }
  TORCH_CHECK(comm != nullptr, "clip_grad_norm_: no parameters below the given module");
  // Squares are summed in double, because there may be thousands of shards of different magnitude.
  at::Tensor square_sum = at::zeros({1}, options.dtype(at::kDouble));
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor norm =
        at::linalg_vector_norm(gradient, 2, at::OptionalIntArrayRef(), false, at::kFloat);
    square_sum.add_(norm.to(at::kDouble).square());
  }
  comm->all_reduce(square_sum, ReduceOp::kSum, Lane::kReduce)->wait();
  const at::Tensor total_norm = square_sum.sqrt().to(at::kFloat).squeeze(0);
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
