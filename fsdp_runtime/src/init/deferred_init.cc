#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/initialize.h>
#include <torch/nn/module.h>

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/disk_memory.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/registry.h"
#include "fsdp_runtime/src/init/deferred_fallback.h"
#include "fsdp_runtime/src/init/init_tape.h"

namespace fsdp {
namespace {

/// The tapes of modules that wait for their values, by address. Process-wide, because ranks may be
/// threads.
class DeferredModules {
 public:
  static DeferredModules& get() {
    static DeferredModules modules;
    return modules;
  }

  void add(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<InitTape> tape) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(tapes_, [](const auto& entry) { return entry.second.module.expired(); });
    tapes_[module.get()] = {module, std::move(tape)};
  }
  bool has(const torch::nn::Module& module) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = tapes_.find(&module);
    return found != tapes_.end() && !found->second.module.expired();
  }
  /// Null if there is none.
  std::shared_ptr<InitTape> take(const torch::nn::Module& module) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = tapes_.find(&module);
    if (found == tapes_.end() || found->second.module.expired()) {
      return nullptr;
    }
    std::shared_ptr<InitTape> tape = std::move(found->second.tape);
    tapes_.erase(found);
    return tape;
  }

 private:
  struct Entry {
    std::weak_ptr<torch::nn::Module> module;
    std::shared_ptr<InitTape> tape;
  };
  std::mutex mutex_;
  std::unordered_map<const torch::nn::Module*, Entry> tapes_;
};

/// Where the values of a module's tensor go.
struct Destination {
  ParamGroup* group = nullptr;  // null: the tensor itself
  size_t index = 0;
};

std::shared_ptr<ModuleState> unit_of(const at::Tensor& tensor) {
  const std::optional<Claim> claim = Registry::get().claim_of(tensor);
  const std::shared_ptr<torch::nn::Module> module = claim ? claim->unit.lock() : nullptr;
  return module ? Registry::get().find(*module) : nullptr;
}

Destination destination_of(const at::Tensor& tensor) {
  if (const std::shared_ptr<ModuleState> unit = unit_of(tensor)) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        if (group->key(i) == tensor.unsafeGetTensorImpl()) {
          return {group.get(), i};
        }
      }
    }
  }
  return {};
}

void prepare_units(const InitTape& tape) {
  std::vector<std::shared_ptr<ModuleState>> prepared;
  for (const InitTape::Bound& bound : tape.bound()) {
    const auto tensor = bound.tensor.lock();
    const std::shared_ptr<ModuleState> unit = tensor ? unit_of(at::Tensor(tensor)) : nullptr;
    if (unit && std::find(prepared.begin(), prepared.end(), unit) == prepared.end()) {
      unit->prepare_to_write();
      prepared.push_back(unit);
    }
  }
}

void deliver(const InitTape::Bound& bound) {
  const auto impl = bound.tensor.lock();
  if (!impl) {
    return;
  }
  const at::Tensor tensor(impl);
  if (const Destination to = destination_of(tensor); to.group != nullptr) {
    ShardStore& store = to.group->store();
    const LocalShard part = store.part_of(store.shard(), to.index);
    copy_part_of(bound.values, part);
    release_pages(part.local);
  } else if (!tensor.storage().is_alias_of(bound.values.storage())) {
    tensor.detach().copy_(bound.values);  // it has been moved, or cast
  }
}

}  // namespace

namespace detail {

struct DeferredInitScope::Guards {
  explicit Guards(InitTape& tape) : operations(tape) {}
  DeferredOperations operations;
};

DeferredInitScope::DeferredInitScope(std::optional<c10::Device> device)
    : tape_(std::make_shared<InitTape>(device)), guards_(std::make_unique<Guards>(*tape_)) {}

DeferredInitScope::~DeferredInitScope() = default;

void DeferredInitScope::finish(const std::shared_ptr<torch::nn::Module>& module) {
  guards_.reset();
  TORCH_CHECK(module, "deferred_init: the function has returned no module");
  tape_->bind(module);
  DeferredModules::get().add(module, tape_);
}

}  // namespace detail

bool is_deferred(const torch::nn::Module& module) { return DeferredModules::get().has(module); }

void materialize_module(const std::shared_ptr<torch::nn::Module>& module) {
  TORCH_CHECK(module, "materialize_module: module is null");
  const std::shared_ptr<InitTape> tape = DeferredModules::get().take(*module);
  TORCH_CHECK(tape, "materialize_module: ", module->name(),
              " has its values already, or does not come from deferred_init()");
  const at::NoGradGuard no_grad;
  prepare_units(*tape);
  tape->play(deliver);
}

}  // namespace fsdp
