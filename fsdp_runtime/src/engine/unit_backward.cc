// What ModuleState does in a backward.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {

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
  check_not_used_up();
  training_ = Training::kPreBackward;
  trace_.begin_backward();
  prepare_buffers();
  if (unshard_in_backward) {
    start_unshard();
  }
  announce_backward();
  for (const auto& group : groups_) {
    if (group->is_accumulated()) {
      group->begin_gradients();
    }
  }
  if (unshard_in_backward) {
    wait_for_unshard();
  }
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
      reshard_after_gradients();
      if (training_ == Training::kPreBackward) {
        context_->on_unit_backward_end(*this);
      }
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
      trace_.end_backward();
      return;
  }
}

void ModuleState::reshard_after_gradients() {
  if (training_ == Training::kPreBackward && reshard_after_backward) {
    reshard();
  }
}

void ModuleState::post_backward() {
  reshard_after_gradients();
  if (requires_gradient_sync) {
    for (const auto& group : groups_) {
      if (requires_all_reduce && group->has_row_sum() && context_->accumulates_gradients()) {
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
  trace_.end_backward();
}

void ModuleState::abandon_backward() {
  trace_.end_backward();
  if (reshard_after_backward) {
    reshard();
  }
  training_ = Training::kIdle;
  is_backward_announced_ = false;
}

}  // namespace fsdp
