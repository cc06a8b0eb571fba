#include "fsdp_runtime/src/optim/gradient_lists.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

namespace fsdp {
namespace {

bool has_dropped(ParamGroup& group) {
  for (size_t i = 0; i < group.size(); ++i) {
    if (group.uses().is_used(i) && !group.has_gradient(i)) {
      return true;
    }
  }
  return false;
}

void add_gradient(const ParamGroup& group, at::Tensor gradient, GradientsByType& to) {
  const c10::Device device = to.empty() ? gradient.device() : to.begin()->second.front().device();
  TORCH_CHECK(gradient.device() == device, "the gradient of ", group.store().fqn(0), " is on ",
              gradient.device(), ", those of other units are on ", device,
              ", and they cannot be looked at together; give an offload_policy to all units below "
              "the root or to none, or handle them by their own handles");
  to[gradient.scalar_type()].push_back(std::move(gradient));
}

}  // namespace

void add_gradients(ParamGroup& group, GradientsByType& to) {
  group.settle_gradient();
  const at::Tensor gradient = group.gradient();
  if (!gradient.defined()) {
    return;
  }
  if (!has_dropped(group)) {
    add_gradient(group, gradient, to);
    return;
  }
  std::vector<size_t> all(group.size());
  std::iota(all.begin(), all.end(), size_t{0});
  add_gradients_of(group, all, to);
}

void add_gradients_of(ParamGroup& group, const std::vector<size_t>& indices, GradientsByType& to) {
  group.settle_gradient();
  const at::Tensor gradient = group.gradient();
  for (const size_t index : indices) {
    if (group.has_gradient(index)) {
      add_gradient(group, group.store().part_of(gradient, index).local, to);
    }
  }
}

}  // namespace fsdp
