#include "fsdp_runtime/src/activation/saved_tensor_hooks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <mutex>
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

void install_engine() {
  static std::once_flag once;
  std::call_once(once, [] {
    using torch::autograd::Engine;
    TORCH_CHECK(&Engine::get_default_engine() == &Engine::get_base_engine(),
                "fsdp: saved tensors cannot be hooked, because this process has an autograd engine "
                "that is not LibTorch's own, as Python's are; use CheckpointOptions::use_reentrant "
                "there, which needs no hooks");
    torch::autograd::set_default_engine_stub(engine_with_hooks);
  });
}

}  // namespace

SavedTensorScope::SavedTensorScope(std::function<Hooks()> make)
    : make_(std::move(make)), outer_(innermost_hooks) {
  install_engine();
  innermost_hooks = &make_;
}

SavedTensorScope::~SavedTensorScope() { innermost_hooks = outer_; }

}  // namespace fsdp::detail
