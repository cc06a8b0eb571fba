#include "fsdp_runtime/src/optim/gradient_lists.h"

#include <ATen/ATen.h>

#include <numeric>

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

}  // namespace

void add_gradients(ParamGroup& group, GradientsByType& to) {
  group.settle_gradient();
  const at::Tensor gradient = group.gradient();
  if (!gradient.defined()) {
    return;
  }
  if (!has_dropped(group)) {
    to[gradient.scalar_type()].push_back(gradient);
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
      to[gradient.scalar_type()].push_back(group.store().part_of(gradient, index).local);
    }
  }
}

}  // namespace fsdp
