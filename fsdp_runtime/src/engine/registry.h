#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

namespace torch::nn {
class Module;
}

namespace fsdp {

class ModuleState;

/// Maps modules to units by the module's address, because torch::nn::Module cannot hold foreign
/// state without exposing it as a parameter, buffer or submodule. Owns the units and releases them
/// when their modules are gone. Process-wide; guarded by a mutex, because ranks may be threads.
class Registry {
 public:
  static Registry& get();

  void add(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<ModuleState> state);
  /// nullptr when the module has no unit.
  std::shared_ptr<ModuleState> find(const torch::nn::Module& module);
  void release_expired();

 private:
  struct Entry {
    std::weak_ptr<torch::nn::Module> module;
    std::shared_ptr<ModuleState> state;
  };

  std::mutex mutex_;
  std::unordered_map<const torch::nn::Module*, Entry> entries_;
};

}  // namespace fsdp
