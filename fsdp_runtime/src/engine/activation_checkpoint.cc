#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fsdp/activation_checkpoint.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>

#include "fsdp_runtime/src/activation/replay_state.h"

namespace fsdp::detail {
namespace {

namespace autograd = torch::autograd;

/// Represents the whole segment in the autograd graph; its backward recomputes the segment with a
/// graph and runs that graph's backward.
class CheckpointNode : public autograd::Node {
 public:
  CheckpointNode(autograd::edge_list&& next_edges, CheckpointBody body,
                 const std::vector<at::Tensor>& inputs, bool preserve_rng_state)
      : Node(std::move(next_edges)), body_(std::move(body)), autocast_(inputs) {
    if (preserve_rng_state) {
      generators_.emplace(inputs);
    }
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
      requires_grad_.push_back(input.requires_grad());
    }
  }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    TORCH_CHECK(body_,
                "activation_checkpoint: backward ran a second time through a segment whose "
                "inputs are freed; pass retain_graph the first time");
    TORCH_CHECK(autograd::Engine::get_default_engine().is_checkpoint_valid(),
                "activation_checkpoint: the backward is restricted to some inputs, as by "
                "autograd::grad(), but a recomputed segment gives all its parameters their "
                "gradients; call backward() on the loss without inputs");
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "activation_checkpoint: the backward creates a graph (create_graph), which a "
                "recomputed segment cannot become a part of; leave the checkpoint out where second "
                "derivatives are needed");
    std::vector<at::Tensor> inputs = fresh_inputs();
    std::vector<at::Tensor> outputs;
    {
      std::optional<GeneratorScope> generators;
      if (generators_) {
        generators.emplace(*generators_);
      }
      AutocastScope casts(autocast_);
      at::AutoGradMode with_graph(true);
      outputs = body_(inputs);
    }
    autograd::variable_list roots;
    autograd::variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    if (!roots.empty()) {
      autograd::backward(roots, root_gradients);
    }
    autograd::variable_list result;
    for (const at::Tensor& input : inputs) {
      result.push_back(input.requires_grad() ? input.grad() : at::Tensor());
    }
    return result;
  }

  void release_variables() override {
    for (autograd::SavedVariable& input : inputs_) {
      input.reset_data();
    }
    body_ = nullptr;
  }
  std::string name() const override { return "FsdpActivationCheckpoint"; }

 private:
  std::vector<at::Tensor> fresh_inputs() {
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs.push_back(inputs_[i].unpack().detach());
      inputs.back().set_requires_grad(requires_grad_[i]);
    }
    return inputs;
  }

  CheckpointBody body_;
  std::vector<autograd::SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  std::optional<GeneratorStates> generators_;
  AutocastState autocast_;
};

}  // namespace

std::vector<at::Tensor> run_checkpointed(CheckpointBody body, std::vector<at::Tensor> inputs,
                                         bool preserve_rng_state) {
  const bool has_gradient = at::GradMode::is_enabled() &&
                            std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
                              return input.requires_grad();
                            });
  if (!has_gradient) {
    return body(inputs);
  }
  autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(autograd::impl::gradient_edge(input));
  }
  std::shared_ptr<CheckpointNode> node(
      new CheckpointNode(std::move(edges), body, inputs, preserve_rng_state), autograd::deleteNode);
  std::vector<at::Tensor> outputs;
  {
    at::NoGradGuard no_graph;
    outputs = body(inputs);
  }
  for (at::Tensor& output : outputs) {
    const uint32_t input_nr = node->add_input_metadata(output);
    if (output.is_floating_point() || output.is_complex()) {
      output = output.detach();  // an output that is also an input must keep its own graph node
      autograd::impl::set_gradient_edge(output, {node, input_nr});
    }
  }
  return outputs;
}

}  // namespace fsdp::detail
