#pragma once

#include <c10/core/Device.h>
#include <fsdp/unit.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

class ModuleState;
class ParamGroup;

/// Identity on a unit's inputs whose backward runs the unit's post-backward. It is created before
/// every node of the unit's forward, so the autograd engine, which runs the most recently created
/// ready node first, runs it after every gradient of the unit has been accumulated.
class PostBackwardNode : public torch::autograd::Node {
 public:
  /// Replaces the tensors, all of which require grad. Returns the versions of those that somebody
  /// else can see: were they modified through what replaces them, the others' history would not
  /// know.
  static std::vector<detail::InputVersion> install(ModuleState& state,
                                                   const std::vector<at::Tensor*>& inputs);

  PostBackwardNode(ModuleState& state, torch::autograd::edge_list&& next_edges);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "FsdpPostBackward"; }

 private:
  std::weak_ptr<ModuleState> state_;
};

/// Runs a unit's pre-backward before the node that has made an output of the unit. What
/// Tensor::register_hook would add, without the list in which a user could find it again.
class PreBackwardHook : public torch::autograd::FunctionPreHook {
 public:
  /// `made_by`: the node of an output. If that is not on `device`, autograd calls the node's hooks
  /// on another thread than those of the parameters; the nodes behind it that are get the hook
  /// then.
  static void install(ModuleState& state, const std::shared_ptr<torch::autograd::Node>& made_by,
                      c10::Device device);
  explicit PreBackwardHook(std::weak_ptr<ModuleState> state) : state_(std::move(state)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override;

 private:
  std::weak_ptr<ModuleState> state_;
};

/// Passes a parameter's gradient to its group as soon as autograd has accumulated it. Owned by the
/// parameter's autograd metadata, so its destructor runs when the parameter dies; it then releases
/// units whose modules are gone.
class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  /// `group`: one of those of `state`.
  GradientHook(std::weak_ptr<ModuleState> state, ParamGroup& group, size_t index);
  ~GradientHook() override;
  /// Of a parameter of a unit; null if it is none.
  static GradientHook* of(const at::Tensor& parameter);
  void operator()(const at::Tensor& parameter) override;
  /// In a node's backward: where it may produce the gradient, of `dtype`, that it returns for
  /// `parameter`; undefined if that is to be in memory of its own. See
  /// ModuleState::memory_for_gradient.
  at::Tensor memory_for_gradient(const at::Tensor& parameter, at::ScalarType dtype) const;

 private:
  std::weak_ptr<ModuleState> state_;
  ParamGroup& group_;  // lives as long as the state
  size_t index_;
};

}  // namespace fsdp
