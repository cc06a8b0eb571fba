#include "fsdp_runtime/src/optim/gradient_lists.h"

#include <ATen/ATen.h>

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
  for (size_t i = 0; i < group.size(); ++i) {
    if (group.has_gradient(i)) {
      to[gradient.scalar_type()].push_back(group.store().part_of(gradient, i).local);
    }
  }
}

}  // namespace fsdp
