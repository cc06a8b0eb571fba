#pragma once

#include <fsdp/export.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <memory>

namespace fsdp::detail {

/// While it lives, what autograd saves for backward on this thread is given to hooks of `make`, one
/// for each saved tensor, instead of being kept: Python's torch.autograd.graph.saved_tensors_hooks.
/// LibTorch asks its engine for such hooks; so a scope puts one of ours in the place of the default
/// one, where it stays. Scopes nest; the innermost has all tensors. `make` may return null: then
/// autograd keeps the tensor.
///
/// Errors: TORCH_CHECK if another engine than LibTorch's is there, as in a Python process.
class FSDP_API SavedTensorScope {
 public:
  using Hooks = std::unique_ptr<torch::autograd::SavedVariableHooks>;

  explicit SavedTensorScope(std::function<Hooks()> make);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  std::function<Hooks()> make_;
  const std::function<Hooks()>* outer_;
};

/// Puts our engine in the place of LibTorch's own before a backward runs in which the first scope
/// might be. Does nothing if another one is there. Thread: any.
void offer_engine_with_hooks() noexcept;

}  // namespace fsdp::detail
