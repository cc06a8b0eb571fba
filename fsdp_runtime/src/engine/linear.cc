#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/strides.h>
#include <fsdp/linear.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>

#include "fsdp_runtime/src/engine/autograd_hooks.h"

namespace fsdp {
namespace {

namespace autograd = torch::autograd;

at::Tensor as_rows(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

/// What autograd makes of at::linear is a chain of nodes, which run the same operations for inputs
/// as is_for_own_node() wants them; only their output cannot be chosen.
class LinearBackward : public autograd::Node {
 public:
  LinearBackward(autograd::edge_list&& next_edges, const at::Tensor& input,
                 const at::Tensor& weight)
      : Node(std::move(next_edges)), input_(input, false) {
    if (input.requires_grad()) {
      weight_ = autograd::SavedVariable(weight, false);
    }
  }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    std::lock_guard lock(mutex_);
    autograd::variable_list results(num_outputs());
    if (const at::Tensor& gradient = gradients.front(); gradient.defined()) {
      const at::Tensor rows = as_rows(gradient);
      const at::Tensor input = input_.unpack();
      if (task_should_compute_output(0)) {
        results[0] = rows.mm(weight_.unpack()).reshape(input.sizes());
      }
      if (task_should_compute_output(1)) {
        results[1] = weight_gradient(rows.t(), as_rows(input));
      }
      if (results.size() > 2 && task_should_compute_output(2)) {
        results[2] = at::sum_to(rows, at::IntArrayRef(rows.size(1)));
      }
    }
    return results;
  }

  void release_variables() override {
    std::lock_guard lock(mutex_);
    input_.reset_data();
    weight_.reset_data();
  }

  std::string name() const override { return "FsdpLinearBackward"; }

 private:
  at::Tensor weight_gradient(const at::Tensor& columns, const at::Tensor& input) const {
    const auto* node = dynamic_cast<const autograd::AccumulateGrad*>(next_edge(1).function.get());
    const GradientHook* hook = node != nullptr ? GradientHook::of(node->variable) : nullptr;
    at::Tensor memory = hook != nullptr
                            ? hook->memory_for_gradient(node->variable, columns.scalar_type())
                            : at::Tensor();
    return memory.defined() ? at::mm_out(memory, columns, input) : columns.mm(input);
  }

  autograd::SavedVariable input_;
  autograd::SavedVariable weight_;  // empty if the input needs no gradient
};

/// at::linear chooses among several ways to multiply by the strides, also of dimensions of size 1.
bool is_in_rows(const at::Tensor& input) {
  return input.dim() >= 2 && input.numel() > 1 &&
         input.strides() == at::IntArrayRef(c10::contiguous_strides(input.sizes()));
}

/// Whether LinearBackward does what autograd would, and has anything to gain.
bool is_for_own_node(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return at::GradMode::is_enabled() && weight.is_cpu() && weight.requires_grad() &&
         weight.dim() == 2 && weight.is_contiguous() && !weight.is_complex() && input.is_cpu() &&
         is_in_rows(input) && (!bias.defined() || bias.dim() == 1) &&
         GradientHook::of(weight) != nullptr && !at::autocast::is_autocast_enabled(at::kCPU) &&
         !autograd::isFwGradDefined(input) && !autograd::isFwGradDefined(weight) &&
         !autograd::isFwGradDefined(bias);
}

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const std::optional<at::Tensor> optional_bias =
      bias.defined() ? std::optional(bias) : std::nullopt;
  if (!is_for_own_node(input, weight, bias)) {
    return at::linear(input, weight, optional_bias);
  }
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    output = at::linear(input, weight, optional_bias);
  }
  autograd::edge_list edges = bias.defined() ? autograd::collect_next_edges(input, weight, bias)
                                             : autograd::collect_next_edges(input, weight);
  const std::shared_ptr<LinearBackward> node(new LinearBackward(std::move(edges), input, weight),
                                             autograd::deleteNode);
  autograd::set_history(output, node);
  return output;
}

}  // namespace fsdp
