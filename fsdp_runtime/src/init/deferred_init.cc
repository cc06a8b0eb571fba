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
  /// Never destroyed: a tape may hold memory of a device, whose own library may have ended by then.
  static DeferredModules& get() {
    static DeferredModules& modules = *new DeferredModules;
    return modules;
  }

  void add(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<InitTape> tape) {
    const std::lock_guard<std::mutex> lock(mutex_);
    forget_dead();
    tapes_[module.get()] = {module, std::move(tape)};
  }
  /// Null if there is none.
  std::shared_ptr<InitTape> find(const torch::nn::Module& module) {
    const std::lock_guard<std::mutex> lock(mutex_);
    forget_dead();
    const auto found = tapes_.find(&module);
    return found == tapes_.end() ? nullptr : found->second.tape;
  }
  void remove(const torch::nn::Module& module) {
    const std::lock_guard<std::mutex> lock(mutex_);
    tapes_.erase(&module);
  }

 private:
  void forget_dead() {
    std::erase_if(tapes_, [](const auto& entry) { return entry.second.module.expired(); });
  }

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
  std::vector<std::shared_ptr<ModuleState>> units;
  for (const InitTape::Bound& bound : tape.bound()) {
    const auto tensor = bound.tensor.lock();
    const std::shared_ptr<ModuleState> unit = tensor ? unit_of(at::Tensor(tensor)) : nullptr;
    if (unit && std::find(units.begin(), units.end(), unit) == units.end()) {
      TORCH_CHECK(unit->training() == ModuleState::Training::kIdle &&
                      !unit->context().in_backward() && !unit->is_summoned,
                  "materialize_module: ", unit->module()->name(),
                  " is in its forward or backward, or in summon_full_params(), where its "
                  "parameters are not its own; call it before or afterwards");
      units.push_back(unit);
    }
  }
  for (const std::shared_ptr<ModuleState>& unit : units) {
    unit->prepare_to_write();
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

bool is_deferred(const torch::nn::Module& module) {
  return DeferredModules::get().find(module) != nullptr;
}

void materialize_module(const std::shared_ptr<torch::nn::Module>& module) {
  TORCH_CHECK(module, "materialize_module: module is null");
  const std::shared_ptr<InitTape> tape = DeferredModules::get().find(*module);
  TORCH_CHECK(tape, "materialize_module: ", module->name(),
              " has its values already, or does not come from deferred_init()");
  const at::NoGradGuard no_grad;
  prepare_units(*tape);
  tape->play(deliver);
  DeferredModules::get().remove(*module);
}

}  // namespace fsdp
