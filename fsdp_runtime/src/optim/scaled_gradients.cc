#include "fsdp_runtime/src/optim/scaled_gradients.h"

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/leaf_owners.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/optim/adamw_state.h"

namespace fsdp {
namespace {

using Groups = std::vector<std::shared_ptr<ParamGroup>>;

bool holds_group(const Groups& groups, const std::shared_ptr<ParamGroup>& group) {
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

/// Of all units of the model that it belongs to, so that optimizers of parts of it agree on the
/// same ranks.
std::shared_ptr<ParamGroup> largest_beside(const std::shared_ptr<ParamGroup>& group) {
  const std::shared_ptr<ModuleState> root = group->context() ? group->context()->root() : nullptr;
  return root ? group_on_most_ranks(root->units()) : group;
}

}  // namespace

size_t GradScaler::Target::count_in(const Groups& others) const {
  return static_cast<size_t>(std::count_if(
      groups.begin(), groups.end(),
      [&others](const std::shared_ptr<ParamGroup>& group) { return holds_group(others, group); }));
}

void GradScaler::Target::add_group(const std::shared_ptr<ParamGroup>& group) {
  if (holds_group(groups, group)) {
    return;
  }
  groups.push_back(group);
  device = group->store().shard().device();
  if (const std::shared_ptr<ParamGroup> most = largest_beside(group); !holds_group(largest, most)) {
    largest.push_back(most);
  }
}

void GradScaler::Target::add_gradient(at::Tensor gradient) {
  TORCH_CHECK(gradients.empty() || gradient.device() == device,
              "GradScaler: the optimizer has gradients on ", device, " and on ", gradient.device(),
              "; expected those of one device");
  device = gradient.device();
  gradients[gradient.scalar_type()].push_back(std::move(gradient));
}

GradScaler::Target GradScaler::target_of(AdamW& optimizer) {
  Target target;
  for (const std::shared_ptr<AdamW::UnitState>& unit : optimizer.units_) {
    target.add_group(unit->group);
    if (unit->has_all()) {
      add_gradients(*unit->group, target.gradients);
    } else {
      add_gradients_of(*unit->group, unit->indices, target.gradients);
    }
  }
  return target;
}

GradScaler::Target GradScaler::target_of(const FSDPModule& module) {
  Target target;
  for (const std::shared_ptr<ModuleState>& unit : module.state()->units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      target.add_group(group);
      add_gradients(*group, target.gradients);
    }
  }
  return target;
}

GradScaler::Target GradScaler::target_of(torch::optim::Optimizer& optimizer) {
  Target target;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& param : group.params()) {
      if (const std::shared_ptr<ParamGroup> owner = LeafOwners::get().find(param)) {
        target.add_group(owner);
      }
    }
  }
  for (const std::shared_ptr<ParamGroup>& group : target.groups) {
    group->settle_gradient();
  }
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (at::Tensor& param : group.params()) {
      at::Tensor& gradient = param.mutable_grad();
      if (!gradient.defined()) {
        continue;
      }
      if (gradient.is_sparse()) {
        gradient = gradient.coalesce();  // or the sum of what is there twice could overflow unseen
        target.add_gradient(gradient._values());
      } else {
        target.add_gradient(gradient);
      }
    }
  }
  return target;
}

}  // namespace fsdp
