#include <ATen/ATen.h>
#include <fsdp/counters.h>
#include <fsdp/fully_shard.h>
#include <torch/nn/module.h>

#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/part_groups.h"

namespace fsdp {
namespace {

const std::shared_ptr<ModuleState>& checked(const std::shared_ptr<ModuleState>& state) {
  TORCH_CHECK(state, "fsdp: empty FSDPModule handle; use the one that fully_shard returns");
  return state;
}

template <class Apply>
void for_units(const std::shared_ptr<ModuleState>& state, bool recurse, Apply apply) {
  if (!recurse) {
    apply(*checked(state));
    return;
  }
  for (const std::shared_ptr<ModuleState>& unit : checked(state)->units()) {
    apply(*unit);
  }
}

std::vector<std::weak_ptr<ModuleState>> states_of(const std::vector<FSDPModule>& modules) {
  std::vector<std::weak_ptr<ModuleState>> states;
  states.reserve(modules.size());
  for (const FSDPModule& module : modules) {
    states.push_back(checked(module.state()));
  }
  return states;
}

}  // namespace

void FSDPModule::unshard() const {
  checked(state_)->start_unshard();
  state_->wait_for_unshard();
}

UnshardHandle FSDPModule::unshard_async() const {
  checked(state_)->start_unshard();
  return UnshardHandle(state_);
}

void UnshardHandle::wait() const { checked(state_)->finish_unshard(); }

void FSDPModule::reshard() const { checked(state_)->reshard(); }

void FSDPModule::set_requires_gradient_sync(bool requires_gradient_sync, bool recurse) const {
  for_units(state_, recurse,
            [=](ModuleState& unit) { unit.requires_gradient_sync = requires_gradient_sync; });
}

void FSDPModule::set_requires_all_reduce(bool requires_all_reduce, bool recurse) const {
  for_units(state_, recurse,
            [=](ModuleState& unit) { unit.requires_all_reduce = requires_all_reduce; });
}

void FSDPModule::set_all_reduce_hook(std::function<void(at::Tensor gradient)> hook) const {
  for (const std::shared_ptr<ParamGroup>& group : checked(state_)->groups()) {
    group->reducer().set_all_reduce_hook(hook);
  }
}

void FSDPModule::set_reshard_after_forward(ReshardAfterForward reshard_after_forward,
                                           bool recurse) const {
  for_units(state_, recurse, [&](ModuleState& unit) {
    const DeviceMesh& mesh = *unit.mesh();
    check_reshard_after_forward(reshard_after_forward, mesh.size(mesh.ndim() - 1));
  });
  for_units(state_, recurse,
            [&](ModuleState& unit) { unit.set_reshard_after_forward(reshard_after_forward); });
}

void FSDPModule::set_reshard_after_backward(bool reshard_after_backward, bool recurse) const {
  for_units(state_, recurse,
            [=](ModuleState& unit) { unit.reshard_after_backward = reshard_after_backward; });
}

void FSDPModule::set_unshard_in_backward(bool unshard_in_backward) const {
  checked(state_)->unshard_in_backward = unshard_in_backward;
}

void FSDPModule::set_is_last_backward(bool is_last_backward) const {
  checked(state_)->context().set_is_last_backward(is_last_backward);
}

void FSDPModule::set_force_sum_reduction_for_comms(bool enable) const {
  for (const std::shared_ptr<ParamGroup>& group : checked(state_)->groups()) {
    group->reducer().set_force_sum(enable);
  }
}

void FSDPModule::set_post_optim_event(std::shared_ptr<c10::Event> event) const {
  checked(state_)->context().set_post_optim_event(std::move(event));
}

void FSDPModule::set_custom_all_gather(std::shared_ptr<AllGather> comm) const {
  for (const std::shared_ptr<ParamGroup>& group : checked(state_)->groups()) {
    group->set_custom_all_gather(comm);
  }
}

void FSDPModule::set_custom_reduce_scatter(std::shared_ptr<ReduceScatter> comm) const {
  for (const std::shared_ptr<ParamGroup>& group : checked(state_)->groups()) {
    group->reducer().set_custom(comm);
  }
}

void FSDPModule::set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules) const {
  checked(state_)->forward_prefetch = states_of(modules);
}

void FSDPModule::set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules) const {
  checked(state_)->backward_prefetch = states_of(modules);
}

void FSDPModule::set_gradient_divide_factor(double factor) const {
  TORCH_CHECK(factor > 0, "set_gradient_divide_factor: expected a positive factor, got ", factor);
  for (const std::shared_ptr<ParamGroup>& group : checked(state_)->groups()) {
    group->set_gradient_divide_factor(factor);
  }
}

std::vector<LocalShard> FSDPModule::sharded_parameters() const {
  std::vector<LocalShard> parts;
  for (const ParamRef& param : params_below(*checked(state_))) {
    parts.push_back(part_of(param, param.group->store().handed_out()));
  }
  return parts;
}

std::vector<std::pair<std::string, at::Tensor>> FSDPModule::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const ParamRef& param : params_below(*checked(state_))) {
    named.emplace_back(param.fqn, param.group->leaves()[param.index]);
  }
  return named;
}

std::vector<at::Tensor> FSDPModule::parameters() const {
  std::vector<at::Tensor> tensors;
  for (auto& [fqn, tensor] : named_parameters()) {
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void FSDPModule::prepare_to_write() const {
  for_units(checked(state_), /*recurse=*/true, [](ModuleState& unit) { unit.prepare_to_write(); });
}

std::vector<LocalShard> FSDPModule::sharded_gradients() const {
  std::vector<LocalShard> parts;
  for (const ParamRef& param : params_below(*checked(state_))) {
    param.group->settle_gradient();
    const bool has_gradient = param.group->has_gradient(param.index);
    parts.push_back(part_of(param, has_gradient ? param.group->gradient() : at::Tensor()));
  }
  return parts;
}

void FSDPModule::init_parameters(
    const std::function<void(const std::string& fqn, at::Tensor full)>& init) const {
  at::NoGradGuard no_grad;
  prepare_to_write();
  for (const ParamRef& param : params_below(*state_)) {
    at::Tensor full =
        at::empty(param.group->store().shape(param.index), param.group->store().shard().options());
    init(param.fqn, full);
    const LocalShard part = part_of(param, param.group->store().shard());
    copy_part_of(full, part);
    release_pages(part.local);
  }
}

at::Tensor FSDPModule::full_parameter(const std::string& fqn) const {
  for (const ParamRef& param : params_below(*checked(state_))) {
    if (param.fqn == fqn) {
      return param.group->gathered_copy(param.index);
    }
  }
  TORCH_CHECK(false, "full_parameter: no parameter ", fqn, " below ", state_->module()->name());
}

std::vector<FSDPModule> FSDPModule::units() const {
  std::vector<FSDPModule> modules;
  for (const std::shared_ptr<ModuleState>& unit : checked(state_)->units()) {
    modules.emplace_back(unit);
  }
  return modules;
}

void share_comm_ctx(const std::vector<FSDPModule>& roots) {
  for (const FSDPModule& root : roots) {
    TORCH_CHECK(checked(root.state())->is_root(),
                "share_comm_ctx: ", root.state()->module()->name(),
                " is no root; pass the outermost modules that have been sharded");
  }
  for (const FSDPModule& root : roots) {
    root.state()->context().share_slots(roots.front().state()->context());
  }
}

RuntimeCounters runtime_counters(const FSDPModule& unit) {
  return checked(unit.state())->context().counters();
}

}  // namespace fsdp
