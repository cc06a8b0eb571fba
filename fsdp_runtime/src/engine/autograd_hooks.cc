#include "fsdp_runtime/src/engine/autograd_hooks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <utility>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {
namespace {

/// input.detach(), past the dispatcher: the same memory and version counter without a history.
at::Tensor without_history(const at::Tensor& input) {
  if (input._fw_grad(/*level=*/0).defined()) {
    return input.detach();  // keeps the forward-mode gradient
  }
  c10::TensorImpl* impl = input.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/false));
}

/// Whether a result of the node in forward was there.
bool is_on(c10::Device device, const torch::autograd::Node& node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    if (node.input_metadata(i).device() == device) {
      return true;
    }
  }
  return false;
}

}  // namespace

PostBackwardNode::PostBackwardNode(ModuleState& state, torch::autograd::edge_list&& next_edges)
    : Node(std::move(next_edges)), state_(state.weak_from_this()) {}

std::vector<detail::InputVersion> PostBackwardNode::install(
    ModuleState& state, const std::vector<at::Tensor*>& inputs) {
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const at::Tensor* input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(*input));
  }
  std::shared_ptr<PostBackwardNode> node(new PostBackwardNode(state, std::move(edges)),
                                         torch::autograd::deleteNode);
  std::vector<detail::InputVersion> shared;
  for (at::Tensor* input : inputs) {
    const uint32_t input_nr = node->add_input_metadata(*input);
    const bool has_version = !input->is_inference();
    if (has_version && (input->use_count() > 1 || input->is_view())) {
      shared.push_back({torch::autograd::impl::version_counter(*input),
                        static_cast<uint32_t>(input->_version())});
    }
    *input = without_history(*input);
    torch::autograd::impl::set_gradient_edge(*input, {node, input_nr});
  }
  state.uses().add(node, state.context().forward_id());
  return shared;
}

torch::autograd::variable_list PostBackwardNode::apply(torch::autograd::variable_list&& gradients) {
  if (std::shared_ptr<ModuleState> state = state_.lock()) {
    state->end_use(*this);
  }
  return std::move(gradients);
}

void PreBackwardHook::install(ModuleState& state,
                              const std::shared_ptr<torch::autograd::Node>& made_by,
                              c10::Device device) {
  if (is_on(device, *made_by)) {
    made_by->add_tensor_pre_hook(std::make_unique<PreBackwardHook>(state.weak_from_this()));
    return;
  }
  std::vector<std::shared_ptr<torch::autograd::Node>> left = {made_by};
  std::unordered_set<const torch::autograd::Node*> seen;
  while (!left.empty()) {
    const std::shared_ptr<torch::autograd::Node> node = std::move(left.back());
    left.pop_back();
    const bool is_leaf = node->next_edges().empty();  // a parameter, which has a hook of its own
    if (is_leaf || !seen.insert(node.get()).second) {
      continue;
    }
    if (is_on(device, *node)) {
      node->add_tensor_pre_hook(std::make_unique<PreBackwardHook>(state.weak_from_this()));
      continue;
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.is_valid()) {
        left.push_back(edge.function);
      }
    }
  }
}

torch::autograd::variable_list PreBackwardHook::operator()(
    const torch::autograd::variable_list& gradients) {
  if (std::shared_ptr<ModuleState> state = state_.lock()) {
    state->pre_backward();
  }
  return gradients;
}

GradientHook::GradientHook(std::weak_ptr<ModuleState> state, ParamGroup& group, size_t index)
    : state_(std::move(state)), group_(group), index_(index) {}

GradientHook::~GradientHook() { Registry::get().release_expired(); }

GradientHook* GradientHook::of(const at::Tensor& parameter) {
  return dynamic_cast<GradientHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

at::Tensor GradientHook::memory_for_gradient(const at::Tensor& parameter,
                                             at::ScalarType dtype) const {
  const std::shared_ptr<ModuleState> state = state_.lock();
  return state ? state->memory_for_gradient(group_, index_, parameter, dtype) : at::Tensor();
}

void GradientHook::operator()(const at::Tensor& parameter) {
  if (std::shared_ptr<ModuleState> state = state_.lock()) {
    state->on_gradient(group_, index_, parameter);
  }
}

}  // namespace fsdp
