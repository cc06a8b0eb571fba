#include "fsdp_runtime/src/engine/module_state.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/part_groups.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {

ModuleState::ModuleState(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                         FullyShardOptions options, std::vector<std::shared_ptr<ParamGroup>> groups)
    : forward_(modules),
      options_(std::move(options)),
      device_(options_.mesh->group(options_.mesh->ndim() - 1)->device()),
      groups_(std::move(groups)) {
  if (options_.mp_policy.buffer_dtype) {
    buffers_.emplace(modules);
  }
  set_reshard_after_forward(options_.reshard_after_forward);
}

std::vector<std::shared_ptr<torch::nn::Module>> ModuleState::modules() const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules = forward_.alive();
  TORCH_CHECK(!modules.empty(), "fsdp: the module of this handle has been destroyed");
  return modules;
}

std::shared_ptr<torch::nn::Module> ModuleState::module() const { return modules().front(); }

void ModuleState::set_reshard_after_forward(const std::optional<ReshardAfterForward>& asked) {
  const std::shared_ptr<Collectives>& comm = options_.mesh->group(options_.mesh->ndim() - 1);
  const bool keeps_all = asked && asked->ranks() == 1 && comm->size() > 1;
  if (keeps_all) {
    TORCH_WARN("reshard_after_forward: 1 keeps the gathered parameters, as false does; pass false");
  }
  part_comm_ = keeps_all || takes_no_memory_to_unshard() ? nullptr : part_group(asked, comm);
  reshard_after_forward_ =
      asked ? std::optional<bool>(asked->reshards() && !keeps_all) : std::nullopt;
}

std::vector<std::shared_ptr<ModuleState>> ModuleState::units() {
  const std::vector<std::shared_ptr<torch::nn::Module>> own = modules();
  if (const int64_t version = Registry::get().version(); version != units_version_) {
    const std::vector<std::shared_ptr<ModuleState>> found = units_below(own);
    units_.assign(found.begin(), found.end());
    units_version_ = version;
  }
  std::vector<std::shared_ptr<ModuleState>> units;
  units.reserve(units_.size());
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    std::shared_ptr<ModuleState> unit = weak.lock();
    if (unit && !unit->forward_.are_gone()) {
      units.push_back(std::move(unit));
    }
  }
  return units;
}

void ModuleState::set_name(const std::string& name) {
  name_ = name;
  trace_.set_unit(name);
  for (const auto& group : groups_) {
    group->set_unit_name(name);
  }
}

void ModuleState::set_context(std::shared_ptr<RunContext> context, int64_t index) {
  for (const auto& group : groups_) {
    group->set_context(context);
  }
  context_ = std::move(context);
  index_ = index;
}

void ModuleState::check_not_summoned() const {
  TORCH_CHECK(!is_summoned, "fsdp: ", module()->name(),
              " was called, or gathered, while summon_full_params() has its parameters; do that "
              "behind it");
}

void ModuleState::check_not_used_up() const {
  for (const auto& group : groups_) {
    group->check_not_used_up();
  }
}

void ModuleState::set_full_precision(bool is_full) {
  is_full_precision_ = is_full;
  for (const auto& group : groups_) {
    group->set_full_precision(is_full);
  }
}

void ModuleState::restore_precision() {
  if (!is_summoned) {
    set_full_precision(is_graph_in_full_precision_);
  }
}

void ModuleState::restore_buffers() const {
  if (buffers_) {
    buffers_->cast(std::nullopt);
  }
}

void ModuleState::start_unshard() {
  check_not_summoned();
  if (options_.mp_policy.full_precision_in_eval && is_sharded() && !context_->in_backward()) {
    set_full_precision(!module()->is_training());
  }
  for (const auto& group : groups_) {
    group->start_unshard();
  }
}

void ModuleState::wait_for_unshard() {
  check_not_summoned();
  for (const auto& group : groups_) {
    group->wait_for_unshard();
  }
}

void ModuleState::reshard() {
  for (const auto& group : groups_) {
    group->reshard();
  }
}

void ModuleState::prepare_to_write() {
  for (const auto& group : groups_) {
    group->prepare_to_write();
  }
}

void ModuleState::begin_update() {
  for (const auto& group : groups_) {
    group->begin_update();
  }
}

void ModuleState::end_update() {
  for (const auto& group : groups_) {
    group->end_update();
  }
}

void ModuleState::finish_unshard() {
  for (const auto& group : groups_) {
    if (!group->is_sharded()) {
      group->wait_for_unshard();
    }
  }
}

bool ModuleState::is_gather_in_flight() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->unsharded().is_in_flight(); });
}

bool ModuleState::is_sharded() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->is_sharded(); });
}

bool ModuleState::takes_no_memory_to_unshard() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->unsharded().takes_no_memory(); });
}

bool ModuleState::takes_no_memory_in_flight() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->unsharded().takes_no_memory_in_flight();
  });
}

}  // namespace fsdp
