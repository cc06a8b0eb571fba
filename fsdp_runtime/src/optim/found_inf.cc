#include <ATen/ATen.h>
#include <fsdp/optim.h>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/optim/gradient_lists.h"

namespace fsdp {
namespace {

/// Those that have parts or copies of the group's parameters.
int64_t ranks_of(const ParamGroup& group) {
  return group.comm()->size() * (group.replicas() ? group.replicas()->size() : 1);
}

/// The first of the groups on most ranks, the same on all of them; null: no parameters.
std::shared_ptr<ParamGroup> group_on_most_ranks(const FSDPModule& root) {
  std::shared_ptr<ParamGroup> found;
  for (const FSDPModule& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      if (!found || ranks_of(*group) > ranks_of(*found)) {
        found = group;
      }
    }
  }
  return found;
}

/// If `inv_scale` is undefined, the gradients stay as they are.
at::Tensor check_and_unscale(const char* caller, const FSDPModule& root, at::Tensor inv_scale) {
  TORCH_CHECK(root, caller, ": empty FSDPModule handle");
  at::NoGradGuard no_grad;
  const std::shared_ptr<ParamGroup> largest = group_on_most_ranks(root);
  TORCH_CHECK(largest, caller, ": no parameters below the given module");
  const auto scalar = at::TensorOptions().dtype(at::kFloat).device(largest->comm()->device());
  if (!inv_scale.defined()) {
    inv_scale = at::ones({}, scalar);  // with which the kernel writes what it has read
  }
  TORCH_CHECK(inv_scale.numel() == 1 && inv_scale.scalar_type() == at::kFloat &&
                  inv_scale.device() == scalar.device(),
              caller, ": inv_scale is a tensor of ", inv_scale.sizes(), ", ",
              inv_scale.scalar_type(), " on ", inv_scale.device(),
              "; expected one element, Float, on ", scalar.device());
  GradientsByType gradients;
  for (const FSDPModule& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      add_gradients(*group, gradients);
    }
  }
  at::Tensor found = at::zeros({1}, scalar);
  for (const auto& [dtype, list] : gradients) {
    at::_amp_foreach_non_finite_check_and_unscale_(list, found, inv_scale);
  }
  const auto reduce = [&found](Collectives& comm) {
    comm.all_reduce(found, ReduceOp::kMax, {Lane::kReduce, "found_inf"})->wait();
  };
  reduce(*largest->comm());
  if (largest->replicas()) {
    reduce(*largest->replicas());
  }
  return found.squeeze(0);
}

}  // namespace

at::Tensor found_inf(const FSDPModule& root) {
  return check_and_unscale("found_inf", root, at::Tensor());
}

at::Tensor unscale_gradients_(const FSDPModule& root, const at::Tensor& inv_scale) {
  TORCH_CHECK(inv_scale.defined(),
              "unscale_gradients_: inv_scale is undefined; pass 1 / scale, or call found_inf()");
  return check_and_unscale("unscale_gradients_", root, inv_scale);
}

}  // namespace fsdp
