#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace torch::nn {
class Module;
}

namespace fsdp {

class ModuleState;

/// Who owns a parameter.
struct Claim {
  std::string fqn;  // below the root of the unit
  std::weak_ptr<torch::nn::Module> unit;
};

/// Which unit a module is, and which unit a parameter belongs to, by address, because neither
/// torch::nn::Module nor at::Tensor can hold foreign state without exposing it as a parameter,
/// buffer or submodule. Owns the units and releases them when their modules are gone; entries of
/// dead parameters are removed. Process-wide; guarded by a mutex, because ranks may be threads.
class Registry {
 public:
  static Registry& get();

  void add(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<ModuleState> state);
  /// nullptr when the module has no unit.
  std::shared_ptr<ModuleState> find(const torch::nn::Module& module);
  void release_expired();
  /// Another one after each add().
  int64_t version() const { return version_; }

  /// Records that a unit owns `parameter`.
  void claim(const at::Tensor& parameter, Claim claim);
  /// Changes the name of a live, claimed parameter.
  void rename_claim(const c10::TensorImpl* parameter, const std::string& fqn);
  /// nullopt when no unit owns it.
  std::optional<Claim> claim_of(const at::Tensor& parameter);

 private:
  struct Unit {
    std::weak_ptr<torch::nn::Module> module;
    std::shared_ptr<ModuleState> state;
  };
  struct Parameter {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    Claim claim;
  };

  std::atomic<int64_t> version_{0};
  std::mutex mutex_;
  std::unordered_map<const torch::nn::Module*, Unit> units_;
  std::unordered_map<const c10::TensorImpl*, Parameter> parameters_;
  size_t sweep_at_ = 1024;  // size of parameters_ from which dead ones are looked for
};

}  // namespace fsdp
