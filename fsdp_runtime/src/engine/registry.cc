#include "fsdp_runtime/src/engine/registry.h"

#include <torch/nn/module.h>

#include <utility>
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
  units_[module.get()] = Unit{module, std::move(state)};
  ++version_;
}

std::shared_ptr<ModuleState> Registry::find(const torch::nn::Module& module) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = units_.find(&module);
  // An expired entry belongs to a dead module that had the same address.
  if (found == units_.end() || found->second.module.expired()) {
    return nullptr;
  }
  return found->second.state;
}

void Registry::release_expired() {
  // Destroyed after the lock is released: destroying a unit may destroy further parameters, whose
  // hooks call this again.
  std::vector<std::shared_ptr<ModuleState>> released;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = units_.begin(); it != units_.end();) {
    if (it->second.module.expired()) {
      released.push_back(std::move(it->second.state));
      it = units_.erase(it);
    } else {
      ++it;
    }
  }
}

void Registry::claim(const at::Tensor& parameter, Claim claim) {
  std::lock_guard<std::mutex> lock(mutex_);
  parameters_.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Parameter{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                std::move(claim)});
  if (parameters_.size() > sweep_at_) {
    std::erase_if(parameters_, [](const auto& entry) { return entry.second.tensor.expired(); });
    sweep_at_ = 2 * parameters_.size() + 1024;
  }
}

void Registry::rename_claim(const c10::TensorImpl* parameter, const std::string& fqn) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parameters_.find(parameter);
  if (found != parameters_.end()) {
    found->second.claim.fqn = fqn;
  }
}

std::optional<Claim> Registry::claim_of(const at::Tensor& parameter) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = parameters_.find(parameter.unsafeGetTensorImpl());
  // The weak reference keeps the address from being reused, so a live entry is this tensor.
  if (found == parameters_.end() || found->second.tensor.expired()) {
    return std::nullopt;
  }
  return found->second.claim;
}

}  // namespace fsdp
