#include "fsdp_runtime/src/engine/module_state.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {

ModuleState::ModuleState(const std::shared_ptr<torch::nn::Module>& module,
                         FullyShardOptions options, std::vector<std::shared_ptr<ParamGroup>> groups)
    : reshard_after_forward(options.reshard_after_forward),
      module_(module),
      options_(std::move(options)),
      groups_(std::move(groups)) {}

std::shared_ptr<torch::nn::Module> ModuleState::module() const {
  std::shared_ptr<torch::nn::Module> module = module_.lock();
  TORCH_CHECK(module, "fsdp: the module of this handle has been destroyed");
  return module;
}

std::vector<std::shared_ptr<ModuleState>> ModuleState::units() {
  const std::shared_ptr<torch::nn::Module> root = module();
  if (const int64_t version = Registry::get().version(); version != units_version_) {
    const std::vector<std::shared_ptr<ModuleState>> found = units_below(root);
    units_.assign(found.begin(), found.end());
    units_version_ = version;
  }
  std::vector<std::shared_ptr<ModuleState>> units;
  units.reserve(units_.size());
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    std::shared_ptr<ModuleState> unit = weak.lock();
    if (unit && !unit->module_.expired()) {
      units.push_back(std::move(unit));
    }
  }
  return units;
}

void ModuleState::set_context(std::shared_ptr<RunContext> context, int64_t index) {
  for (const auto& group : groups_) {
    group->set_context(context);
  }
  context_ = std::move(context);
  index_ = index;
}

void ModuleState::start_unshard() {
  for (const auto& group : groups_) {
    group->start_unshard();
  }
}

void ModuleState::wait_for_unshard() {
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

bool ModuleState::is_sharded() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->is_sharded(); });
}

bool ModuleState::takes_no_memory_to_unshard() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->unsharded().takes_no_memory(); });
}

std::vector<detail::InputVersion> ModuleState::pre_forward(std::vector<at::Tensor*>& inputs) {
  const bool is_recomputation = context_->in_backward();
  if (!is_recomputation) {
    context_->reset_failed_backward();
    TORCH_CHECK(training_ != Training::kForward, "fsdp::call: the forward of ", module()->name(),
                " calls itself, but its parameters are gone when the inner call ends; let it call "
                "a function, or a module that is no unit");
    if (is_root()) {
      context_->begin_forward();
    }
    training_ = Training::kForward;
  }
  start_unshard();
  // Issue the prefetch before waiting for this all-gather, so that the lane is never idle.
  if (!is_recomputation) {
    context_->on_unit_forward(*this);
  } else {
    announce_backward();
  }
  wait_for_unshard();
  if (options_.mp_policy.cast_forward_inputs) {
    cast(inputs, options_.mp_policy.param_dtype);
  }
  // For a recomputation inside this unit's own backward the hooks of the first forward are still
  // registered.
  return training_ != Training::kPreBackward ? register_post_backward_hook(inputs)
                                             : std::vector<detail::InputVersion>();
}

void ModuleState::post_forward(std::vector<at::Tensor*>& outputs,
                               const std::vector<detail::InputVersion>& inputs) {
  check_unmodified(inputs);
  cast(outputs, options_.mp_policy.output_dtype);
  if (training_ != Training::kPreBackward) {
    register_pre_backward_hooks(outputs);
  }
  if (context_->in_backward()) {
    return;  // backward needs the parameters right away
  }
  context_->on_unit_forward_end(*this);
  training_ = Training::kIdle;
  if (is_root() && !at::GradMode::is_enabled()) {
    context_->reshard_all();  // there will be no backward that does it
  } else if (reshards_after_forward()) {
    reshard();
  }
  if (is_root()) {
    context_->end_forward(/*has_backward=*/at::GradMode::is_enabled());
  }
}

void ModuleState::abandon_forward() noexcept {
  try {
    if (context_->in_backward()) {
      return;  // the failed backward is cleaned up as a whole
    }
    training_ = Training::kIdle;
    if (is_root()) {
      context_->reshard_all();
    } else {
      reshard();
    }
  } catch (
      ...) {  // NOLINT(bugprone-empty-catch): the exception of the forward is the one to report
  }
}

void ModuleState::cast(std::vector<at::Tensor*>& tensors,
                       std::optional<at::ScalarType> dtype) const {
  if (!dtype) {
    return;
  }
  for (at::Tensor* tensor : tensors) {
    if (tensor->is_floating_point() && tensor->scalar_type() != *dtype) {
      *tensor = tensor->to(*dtype);
    }
  }
}

std::vector<detail::InputVersion> ModuleState::register_post_backward_hook(
    std::vector<at::Tensor*>& inputs) {
  is_use_reported_ = false;
  if (!at::GradMode::is_enabled()) {
    return {};
  }
  std::vector<at::Tensor*> differentiable;
  for (at::Tensor* input : inputs) {
    if (input->requires_grad()) {
      differentiable.push_back(input);
    }
  }
  if (differentiable.empty()) {
    return {};
  }
  is_use_reported_ = true;
  return PostBackwardNode::install(*this, differentiable);
}

void ModuleState::check_unmodified(const std::vector<detail::InputVersion>& inputs) const {
  for (const detail::InputVersion& input : inputs) {
    TORCH_CHECK(
        !input.is_modified(), "fsdp::call: the forward of ", module()->name(),
        " has modified one of its arguments in place, or memory that it shares. Whoever called it "
        "has the tensor too, and would get a wrong gradient for it; let forward work on a copy, or "
        "call it with one (x.clone()), or give the tensor away (std::move(x))");
  }
}

void ModuleState::register_pre_backward_hooks(std::vector<at::Tensor*>& outputs) {
  if (!at::GradMode::is_enabled()) {
    return;
  }
  for (at::Tensor* output : outputs) {
    // A leaf would keep the hook forever, and its gradient does not pass through this unit.
    if (!output->requires_grad() || output->grad_fn() == nullptr) {
      continue;
    }
    const std::shared_ptr<torch::autograd::Node>& made_by = output->grad_fn();
    if (!is_use_reported_) {
      uses_.add(made_by, context_->forward_id());
      is_use_reported_ = true;  // by the end of the backward
    }
    made_by->add_tensor_pre_hook(std::make_unique<PreBackwardHook>(weak_from_this()));
  }
}

void ModuleState::announce_backward() {
  if (!is_backward_announced_) {
    is_backward_announced_ = true;
    context_->on_unit_backward(*this);
  }
}

void ModuleState::pre_backward() {
  context_->enter_backward();
  if (training_ == Training::kPreBackward) {
    return;
  }
  training_ = Training::kPreBackward;
  start_unshard();
  announce_backward();
  for (const auto& group : groups_) {
    if (group->is_trainable()) {
      group->begin_gradients();
    }
  }
  wait_for_unshard();
}

void ModuleState::on_gradient(ParamGroup& group, size_t index, const at::Tensor& parameter) {
  // Normally pre_backward has run; it has not for outputs that fsdp::call could not see.
  if (training_ != Training::kPreBackward) {
    pre_backward();
  }
  group.begin_gradients();
  at::Tensor& gradient = parameter.mutable_grad();
  group.accumulate_gradient(index, gradient);
  gradient.reset();
}

at::Tensor ModuleState::memory_for_gradient(ParamGroup& group, size_t index,
                                            const at::Tensor& parameter, at::ScalarType dtype) {
  // A hook or the caller of autograd::grad() may keep the gradient, and a graph of it needs it for
  // as long as it lives.
  const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
  const bool is_taken_elsewhere =
      (inputs != nullptr && !inputs->empty()) || at::GradMode::is_enabled() ||
      !torch::autograd::impl::hooks(parameter).empty() || parameter.mutable_grad().defined();
  if (training_ != Training::kPreBackward || is_taken_elsewhere ||
      uses_.are_several_in_backward()) {
    return {};
  }
  return group.lend_gradient(index, dtype);
}

void ModuleState::end_use(const torch::autograd::Node& use) {
  switch (uses_.end(use)) {
    case UnitUses::Left::kNone:
      post_backward();
      return;
    case UnitUses::Left::kInSameForward:
      return;
    case UnitUses::Left::kInOtherForward:
      if (reshard_after_backward) {
        reshard();  // it may be long until then
      }
      // Autograd hands over most gradients in the last pass only.
      for (const auto& group : groups_) {
        group->release_empty_gradients();
      }
      is_backward_announced_ = false;
      training_ = Training::kIdle;
      return;
  }
}

void ModuleState::post_backward() {
  if (training_ == Training::kPreBackward && reshard_after_backward) {
    reshard();
  }
  if (requires_gradient_sync) {
    for (const auto& group : groups_) {
      if (requires_all_reduce && group->has_row_sum()) {
        group->begin_gradients();  // or what the row has kept would be left out
      }
      if (group->collects_gradients()) {
        group->start_reduction(requires_all_reduce);
      }
    }
  } else {
    for (const auto& group : groups_) {
      group->end_gradients();
    }
  }
  is_backward_announced_ = false;
  training_ = Training::kIdle;
}

void ModuleState::abandon_backward() {
  if (reshard_after_backward) {
    reshard();
  }
  training_ = Training::kIdle;
  is_backward_announced_ = false;
}

}  // namespace fsdp
