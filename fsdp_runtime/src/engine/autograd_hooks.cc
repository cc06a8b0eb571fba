#include "fsdp_runtime/src/engine/autograd_hooks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {

PostBackwardNode::PostBackwardNode(ModuleState& state, torch::autograd::edge_list&& next_edges)
    : Node(std::move(next_edges)), state_(state.weak_from_this()) {}

void PostBackwardNode::install(ModuleState& state, const std::vector<at::Tensor*>& inputs) {
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const at::Tensor* input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(*input));
  }
  std::shared_ptr<PostBackwardNode> node(new PostBackwardNode(state, std::move(edges)),
                                         torch::autograd::deleteNode);
  for (at::Tensor* input : inputs) {
    const uint32_t input_nr = node->add_input_metadata(*input);
    *input = input->detach();
    torch::autograd::impl::set_gradient_edge(*input, {node, input_nr});
  }
  state.uses().add(node, state.context().forward_id());
}

torch::autograd::variable_list PostBackwardNode::apply(torch::autograd::variable_list&& gradients) {
  if (std::shared_ptr<ModuleState> state = state_.lock()) {
    state->end_use(*this);
  }
  return std::move(gradients);
}

GradientHook::GradientHook(std::weak_ptr<ModuleState> state, std::weak_ptr<ParamGroup> group,
                           size_t index)
    : state_(std::move(state)), group_(std::move(group)), index_(index) {}

GradientHook::~GradientHook() { Registry::get().release_expired(); }

void GradientHook::operator()(const at::Tensor& parameter) {
  std::shared_ptr<ModuleState> state = state_.lock();
  std::shared_ptr<ParamGroup> group = group_.lock();
  if (state && group) {
    state->on_gradient(*group, index_, parameter);
  }
}

}  // namespace fsdp
