#include "fsdp_runtime/src/engine/registry.h"

#include <torch/nn/module.h>

#include <vector>

#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {

Registry& Registry::get() {
  // Never destroyed: parameters may die after the static objects of the process.
  static Registry* registry = new Registry;
  return *registry;
}

void Registry::add(const std::shared_ptr<torch::nn::Module>& module,
                   std::shared_ptr<ModuleState> state) {
  release_expired();
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[module.get()] = Entry{module, std::move(state)};
}

std::shared_ptr<ModuleState> Registry::find(const torch::nn::Module& module) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(&module);
  // An expired entry belongs to a dead module that had the same address.
  if (found == entries_.end() || found->second.module.expired()) {
    return nullptr;
  }
  return found->second.state;
}

void Registry::release_expired() {
  // Destroyed after the lock is released: destroying a unit may destroy further parameters, whose
  // hooks call this again.
  std::vector<std::shared_ptr<ModuleState>> released;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.module.expired()) {
      released.push_back(std::move(it->second.state));
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace fsdp
