#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fsdp/activation_checkpoint.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace fsdp::detail {
namespace {

namespace autograd = torch::autograd;

/// The states of the default generators that a segment with these inputs may use.
class GeneratorStates {
 public:
  explicit GeneratorStates(const std::vector<at::Tensor>& inputs) {
    add(at::detail::getDefaultCPUGenerator());
    for (const at::Tensor& input : inputs) {
      if (input.is_cuda()) {
        add(at::globalContext().defaultGenerator(input.device()));
      }
    }
  }
  /// The current states of the same generators.
  GeneratorStates now() const {
    GeneratorStates current;
    for (const auto& [generator, state] : states_) {
      current.add(generator);
    }
    return current;
  }
  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator target = generator;
      std::lock_guard<std::mutex> lock(target.mutex());
      target.set_state(state);
    }
  }

 private:
  GeneratorStates() = default;
  void add(const at::Generator& generator) {
    for (const auto& [known, state] : states_) {
      if (known == generator) {
        return;
      }
    }
    at::Generator source = generator;
    std::lock_guard<std::mutex> lock(source.mutex());
    states_.emplace_back(source, source.get_state());
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Sets the generators to `states` and restores their previous states at the end.
class GeneratorScope {
 public:
  explicit GeneratorScope(const GeneratorStates& states) : outer_(states.now()) {
    states.restore();
  }
  ~GeneratorScope() { outer_.restore(); }
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  GeneratorStates outer_;
};

/// The state of autocast for the devices that a segment with these inputs may use.
class AutocastState {
 public:
  explicit AutocastState(const std::vector<at::Tensor>& inputs)
      : uses_cache_(at::autocast::is_autocast_cache_enabled()) {
    add(at::kCPU);
    for (const at::Tensor& input : inputs) {
      if (input.is_cuda()) {
        add(at::kCUDA);
      }
    }
  }
  /// The current state for the same devices.
  AutocastState now() const {
    AutocastState current;
    for (const Device& device : devices_) {
      current.add(device.type);
    }
    return current;
  }
  void restore() const {
    for (const Device& device : devices_) {
      at::autocast::set_autocast_enabled(device.type, device.is_enabled);
      at::autocast::set_autocast_dtype(device.type, device.dtype);
    }
    at::autocast::set_autocast_cache_enabled(uses_cache_);
  }
  bool is_enabled() const {
    return std::any_of(devices_.begin(), devices_.end(),
                       [](const Device& device) { return device.is_enabled; });
  }

 private:
  struct Device {
    c10::DeviceType type;
    bool is_enabled;
    at::ScalarType dtype;
  };

  AutocastState() : uses_cache_(at::autocast::is_autocast_cache_enabled()) {}
  void add(c10::DeviceType type) {
    for (const Device& known : devices_) {
      if (known.type == type) {
        return;
      }
    }
    devices_.push_back(
        {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }

  std::vector<Device> devices_;
  bool uses_cache_;
};

/// Sets autocast to `state` and restores the previous state at the end. The casts of weights that
/// autocast keeps do not pass into the scope, where a cast must be younger than its unit's
/// post-backward node, or out of it, where nobody might forget them before the weights change.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state)
      : outer_(state.now()), casts_(state.is_enabled() || outer_.is_enabled()) {
    clear_casts();
    state.restore();
  }
  ~AutocastScope() {
    clear_casts();
    outer_.restore();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void clear_casts() const {
    if (casts_) {
      at::autocast::clear_cache();
    }
  }

  AutocastState outer_;
  bool casts_;
};

/// Represents the whole segment in the autograd graph; its backward recomputes the segment with a
/// graph and runs that graph's backward.
class CheckpointNode : public autograd::Node {
 public:
  CheckpointNode(autograd::edge_list&& next_edges, CheckpointBody body,
                 const std::vector<at::Tensor>& inputs)
      : Node(std::move(next_edges)),
        body_(std::move(body)),
        generators_(inputs),
        autocast_(inputs) {
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
      GeneratorScope scope(generators_);
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
  GeneratorStates generators_;
  AutocastState autocast_;
};

}  // namespace

std::vector<at::Tensor> run_checkpointed(CheckpointBody body, std::vector<at::Tensor> inputs) {
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
  std::shared_ptr<CheckpointNode> node(new CheckpointNode(std::move(edges), body, inputs),
                                       autograd::deleteNode);
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
