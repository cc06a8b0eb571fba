#include "fsdp_runtime/src/activation/saved_tensor_hooks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace fsdp::detail {
namespace {

thread_local const std::function<SavedTensorScope::Hooks()>* innermost_hooks = nullptr;

class EngineWithHooks : public torch::autograd::Engine {
 public:
  SavedTensorScope::Hooks get_default_saved_variable_hooks() override {
    return innermost_hooks == nullptr ? nullptr : (*innermost_hooks)();
  }
};

/// Never destroyed, as LibTorch's own: threads of it may still run when the process ends.
torch::autograd::Engine& engine_with_hooks() {
  static EngineWithHooks& engine = *new EngineWithHooks;
  return engine;
}

/// False if another engine than LibTorch's is there, which may come at any time, as Python's does
/// when it is imported.
bool install_engine() {
  using torch::autograd::Engine;
  const Engine* const now = &Engine::get_default_engine();
  if (now == &engine_with_hooks()) {
    return true;
  }
  if (now != &Engine::get_base_engine()) {
    return false;
  }
  torch::autograd::set_default_engine_stub(engine_with_hooks);
  return true;
}

}  // namespace

SavedTensorScope::SavedTensorScope(std::function<Hooks()> make)
    : make_(std::move(make)), outer_(innermost_hooks) {
  TORCH_CHECK(install_engine(),
              "fsdp: saved tensors cannot be hooked, because this process has an autograd engine "
              "that is not LibTorch's own, as Python's are; use CheckpointOptions::use_reentrant "
              "there, which needs no hooks");
  innermost_hooks = &make_;
}

SavedTensorScope::~SavedTensorScope() { innermost_hooks = outer_; }

void offer_engine_with_hooks() noexcept { (void)install_engine(); }

}  // namespace fsdp::detail
