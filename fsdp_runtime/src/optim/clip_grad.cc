#include <ATen/ATen.h>
#include <fsdp/clip_grad.h>
#include <fsdp/fully_shard.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/optim/gradient_lists.h"
#include "fsdp_runtime/src/optim/gradient_norm.h"

namespace fsdp {
namespace {

ShardedGradients& on_ranks_of(const ParamGroup& group, std::vector<ShardedGradients>& all) {
  const auto found = std::find_if(all.begin(), all.end(), [&group](const ShardedGradients& one) {
    return one.comm == group.comm() && one.replicas == group.replicas() &&
           one.device == group.store().shard().device();
  });
  if (found != all.end()) {
    return *found;
  }
  all.push_back({group.comm(), group.replicas(), group.store().shard().device()});
  return all.back();
}

std::vector<ShardedGradients> gradients_under(const char* caller, const FSDPModule& root) {
  TORCH_CHECK(root, caller, ": empty FSDPModule handle");
  std::vector<ShardedGradients> all;
  for (const std::shared_ptr<ModuleState>& unit : root.state()->units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      add_gradients(*group, on_ranks_of(*group, all).lists);
    }
  }
  return all;
}

at::Tensor total_norm_of(const char* caller, const std::vector<ShardedGradients>& all,
                         double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK(!all.empty(), caller, ": no parameters below the given module");
  TORCH_CHECK(norm_type > 0, caller, ": norm_type is ", norm_type,
              "; expected one above 0, infinity included");  // a NaN is not
  at::Tensor norm = norm_over_ranks(all, norm_type);
  TORCH_CHECK(!error_if_nonfinite || at::isfinite(norm).item<bool>(), caller,
              ": the total norm of order ", norm_type, " of the gradients is ", norm.item<float>(),
              ", so they cannot be clipped; look for the step that made one of them infinite or "
              "NaN, or scale them anyway with error_if_nonfinite = false");
  return norm;
}

void scale_to(double max_norm, const at::Tensor& total_norm,
              const std::vector<ShardedGradients>& all) {
  if (max_norm <= 0) {
    return;
  }
  const at::Tensor factor = (max_norm / (total_norm + 1e-6)).clamp_max(1.0);
  // A NaN norm makes every gradient NaN, as in torch: the error must stay visible.
  if (factor.is_cpu() && factor.item<double>() >= 1) {
    return;
  }
  for (const ShardedGradients& gradients : all) {
    for (const auto& [dtype, list] : gradients.lists) {
      // On a device only a factor of the same dtype lets one kernel do all.
      at::Tensor here = factor.device() == gradients.device ? factor : factor.to(gradients.device);
      here = here.is_cpu() ? here : here.to(dtype);
      use_in_portions(list, [&here](const std::vector<at::Tensor>& portion) {
        at::_foreach_mul_(portion, here);
      });
    }
  }
}

}  // namespace

at::Tensor clip_grad_norm_(const FSDPModule& root, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  at::NoGradGuard no_grad;
  const std::vector<ShardedGradients> all = gradients_under("clip_grad_norm_", root);
  at::Tensor norm = total_norm_of("clip_grad_norm_", all, norm_type, error_if_nonfinite);
  scale_to(max_norm, norm, all);
  return norm;
}

at::Tensor get_total_norm(const FSDPModule& root, double norm_type, bool error_if_nonfinite) {
  at::NoGradGuard no_grad;
  return total_norm_of("get_total_norm", gradients_under("get_total_norm", root), norm_type,
                       error_if_nonfinite);
}

void clip_grads_with_norm_(const FSDPModule& root, double max_norm, const at::Tensor& total_norm) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(total_norm.defined() && total_norm.dim() == 0 && total_norm.is_floating_point(),
              "clip_grads_with_norm_: total_norm is not a 0-dim tensor of floating point; pass "
              "what get_total_norm() returned");
  const std::vector<ShardedGradients> all = gradients_under("clip_grads_with_norm_", root);
  if (!all.empty()) {
    const c10::Device device = all.front().device;
    TORCH_CHECK(total_norm.device() == device, "clip_grads_with_norm_: total_norm is on ",
                total_norm.device(), ", the gradients are on ", device);
    scale_to(max_norm, total_norm, all);
  }
}

void clip_grad_value_(const FSDPModule& root, double clip_value) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(clip_value >= 0, "clip_grad_value_: clip_value is ", clip_value,
              "; expected one that is not negative");
  for (const ShardedGradients& gradients : gradients_under("clip_grad_value_", root)) {
    for (const auto& [dtype, list] : gradients.lists) {
      use_in_portions(list, [clip_value](const std::vector<at::Tensor>& portion) {
        at::_foreach_clamp_min_(portion, -clip_value);
        at::_foreach_clamp_max_(portion, clip_value);
      });
    }
  }
}

}  // namespace fsdp
