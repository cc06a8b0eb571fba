// What ModuleState does in a forward.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/nn/module.h>

#include "fsdp_runtime/src/activation/is_replaying.h"
#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {

bool ModuleState::begin_forward_of(const torch::nn::Module& called) {
  context_->reset_failed_backward();
  TORCH_CHECK(!forward_.is_running(called), "fsdp::call: the forward of ", called.name(),
              " calls itself, but its parameters are gone when the inner call ends; let it call "
              "a function, or a module that is no unit");
  TORCH_CHECK(!is_root() || !forward_.are_several(), "fsdp::call: ", called.name(),
              " was sharded in a list of modules, which can be no root; shard the module around "
              "them as well");
  if (is_root() && !forward_.is_open()) {
    context_->begin_forward();
  }
  training_ = Training::kForward;
  const bool is_first = forward_.begin(called);
  if (is_first) {
    trace_.begin_forward();
  }
  return is_first;
}

void ModuleState::prepare_dtypes(const torch::nn::Module& called) {
  if (options_.mp_policy.full_precision_in_eval) {
    check_not_summoned();  // ahead of a change
    set_full_precision(!called.is_training());
    if (at::GradMode::is_enabled()) {
      is_graph_in_full_precision_ = is_full_precision_;
    }
  }
  prepare_buffers();
}

void ModuleState::prepare_buffers() const {
  if (buffers_) {
    buffers_->cast(is_full_precision_ ? std::nullopt : options_.mp_policy.buffer_dtype);
  }
}

std::vector<detail::InputVersion> ModuleState::pre_forward(const torch::nn::Module& called,
                                                           std::vector<at::Tensor*>& inputs) {
  const bool is_recomputation = context_->in_backward();
  const bool is_first = is_recomputation ? !forward_.are_several() || forward_.was_first(called)
                                         : begin_forward_of(called);
  if (is_recomputation) {
    check_not_used_up();
    if (training_ != Training::kPreBackward) {
      prepare_dtypes(called);  // there may be no graph of the first run
    } else {
      prepare_buffers();
    }
  } else if (is_first) {
    prepare_dtypes(called);
  }
  {
    // Issue the prefetch before waiting for this all-gather, so that the lane is never idle.
    const c10::OptionalStreamGuard behind_update(
        is_root() && is_first ? context_->take_stream_behind_update() : std::nullopt);
    start_unshard();
    if (is_recomputation) {
      announce_backward();
    } else if (is_first) {
      context_->on_unit_forward(*this);
    }
  }
  wait_for_unshard();
  if (options_.mp_policy.cast_forward_inputs && !is_full_precision_) {
    cast(inputs, options_.mp_policy.param_dtype);
  }
  // For a recomputation inside this unit's own backward the hooks of the first forward are still
  // registered. The module that runs first in forward is the last one in backward.
  const bool has_hooks = training_ == Training::kPreBackward || detail::is_replaying();
  return is_first && !has_hooks ? register_post_backward_hook(inputs)
                                : std::vector<detail::InputVersion>();
}

void ModuleState::post_forward(const torch::nn::Module& called, std::vector<at::Tensor*>& outputs,
                               const std::vector<detail::InputVersion>& inputs) {
  check_unmodified(inputs);
  cast(outputs, options_.mp_policy.output_dtype);
  if (training_ != Training::kPreBackward && !detail::is_replaying()) {
    register_pre_backward_hooks(outputs);
  }
  if (context_->in_backward()) {
    return;  // backward needs the parameters right away
  }
  if (forward_.end(called)) {
    end_forward();
  }
}

void ModuleState::end_forward() {
  context_->on_unit_forward_end(*this);
  training_ = Training::kIdle;
  if (is_root() && !at::GradMode::is_enabled()) {
    context_->reshard_all();  // there will be no backward that does it
  } else {
    if (!at::GradMode::is_enabled()) {
      restore_precision();
    }
    if (reshards_after_forward()) {
      reshard_until_backward();
    }
  }
  if (is_root()) {
    context_->end_forward(/*has_backward=*/at::GradMode::is_enabled());
  }
  trace_.end_forward();
}

void ModuleState::end_open_forward() {
  if (!forward_.is_open()) {
    return;
  }
  if (!is_open_forward_reported_) {
    is_open_forward_reported_ = true;
    TORCH_WARN("fully_shard: of the modules that were sharded as one unit, these have not run: ",
               forward_.names_left(),
               ". The unit stayed gathered until now, because it is resharded when all have run; "
               "let a list have only modules that run together");
  }
  forward_.clear();
  end_forward();
}

void ModuleState::abandon_open_forward() {
  if (forward_.is_open()) {
    training_ = Training::kIdle;
    forward_.clear();
    trace_.end_forward();
  }
}

void ModuleState::reshard_until_backward() {
  for (const auto& group : groups_) {
    if (part_comm_ && at::GradMode::is_enabled()) {
      group->reshard_to_part(part_comm_);
    } else {
      group->reshard();
    }
  }
}

void ModuleState::abandon_forward() noexcept {
  try {
    if (context_->in_backward()) {
      return;  // the failed backward is cleaned up as a whole
    }
    training_ = Training::kIdle;
    forward_.clear();
    if (is_root()) {
      context_->abandon_forward();
    } else {
      reshard();
      restore_precision();
    }
    trace_.end_forward();
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
    if (input->requires_grad() && input->device() == device_) {
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
    PreBackwardHook::install(*this, made_by, device_);
  }
}

}  // namespace fsdp
