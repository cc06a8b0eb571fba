#include <ATen/ATen.h>
#include <fsdp/optim.h>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/optim/gradient_lists.h"
#include "fsdp_runtime/src/optim/overflow.h"

namespace fsdp {
namespace {

std::shared_ptr<ParamGroup> largest_below(const char* caller, const FSDPModule& root) {
  TORCH_CHECK(root, caller, ": empty FSDPModule handle");
  std::shared_ptr<ParamGroup> largest = group_on_most_ranks(root.state()->units());
  TORCH_CHECK(largest, caller, ": no parameters below the given module");
  return largest;
}

GradientsByType gradients_below(const FSDPModule& root) {
  GradientsByType gradients;
  for (const std::shared_ptr<ModuleState>& unit : root.state()->units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      add_gradients(*group, gradients);
    }
  }
  return gradients;
}

}  // namespace

at::Tensor found_inf(const FSDPModule& root) {
  const std::shared_ptr<ParamGroup> largest = largest_below("found_inf", root);
  const at::Tensor found = has_non_finite(gradients_below(root), largest->store().shard().device());
  return found_by_some(found, {largest}).squeeze(0);
}

at::Tensor unscale_gradients_(const FSDPModule& root, const at::Tensor& inv_scale) {
  TORCH_CHECK(inv_scale.defined(),
              "unscale_gradients_: inv_scale is undefined; pass 1 / scale, or call found_inf()");
  const std::shared_ptr<ParamGroup> largest = largest_below("unscale_gradients_", root);
  const c10::Device device = largest->store().shard().device();
  TORCH_CHECK(inv_scale.numel() == 1 && inv_scale.scalar_type() == at::kFloat &&
                  inv_scale.device() == device,
              "unscale_gradients_: inv_scale is a tensor of ", inv_scale.sizes(), ", ",
              inv_scale.scalar_type(), " on ", inv_scale.device(),
              "; expected one element, Float, on ", device);
  return found_by_some(unscale(gradients_below(root), inv_scale), {largest}).squeeze(0);
}

}  // namespace fsdp
