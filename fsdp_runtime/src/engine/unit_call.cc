#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <fsdp/unit.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp::detail {

std::shared_ptr<ModuleState> find_state(const torch::nn::Module& module) {
  return Registry::get().find(module);
}

std::vector<InputVersion> pre_forward(ModuleState& state, const torch::nn::Module& module,
                                      std::vector<at::Tensor*>& inputs) {
  return state.pre_forward(module, inputs);
}

void post_forward(ModuleState& state, const torch::nn::Module& module,
                  std::vector<at::Tensor*>& outputs, const std::vector<InputVersion>& inputs) {
  state.post_forward(module, outputs, inputs);
}

void abandon_forward(ModuleState& state) noexcept { state.abandon_forward(); }

Histories::Histories(const std::vector<at::Tensor*>& tensors) {
  nodes_.reserve(tensors.size());
  for (const at::Tensor* tensor : tensors) {
    nodes_.push_back(tensor->grad_fn());
  }
}

std::vector<at::Tensor*> Histories::made_since(const std::vector<at::Tensor*>& tensors) const {
  std::vector<at::Tensor*> made;
  for (at::Tensor* tensor : tensors) {
    const std::shared_ptr<void> node = tensor->grad_fn();
    if (node && std::find(nodes_.begin(), nodes_.end(), node) == nodes_.end()) {
      made.push_back(tensor);
    }
  }
  return made;
}

void check_has_outputs(const ModuleState& state, const std::vector<at::Tensor*>& outputs,
                       const std::type_info& result) {
  if (!outputs.empty() || !at::GradMode::is_enabled()) {
    return;
  }
  const bool is_trained = std::any_of(state.groups().begin(), state.groups().end(),
                                      [](const auto& group) { return group->is_trainable(); });
  TORCH_CHECK(!is_trained, "fsdp::call: the forward of ", state.module()->name(), " has returned ",
              result == typeid(void) ? std::string("nothing") : "a " + c10::demangle(result.name()),
              ", in which no tensor can be found, so that backward would pass this unit by. Return "
              "tensors, or containers or structs of them, or write them to an argument that is a "
              "reference; or declare void visit_tensors(YourType&, std::vector<at::Tensor*>&) in "
              "the namespace of the type; or call it without grad mode");
}

}  // namespace fsdp::detail
