#include "fsdp_runtime/src/engine/module_walk.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using Visit = std::function<bool(const std::string&, const ModulePtr&)>;

void walk(const ModulePtr& module, const std::string& name, const Visit& visit,
          std::unordered_set<const torch::nn::Module*>& seen) {
  if (!seen.insert(module.get()).second || !visit(name, module)) {
    return;
  }
  for (const auto& child : module->named_children()) {
    walk(child.value(), join_names(name, child.key()), visit, seen);
  }
}

// In the order of walk(). Names are left out: to copy those of all modules would be most of the
// work, which is done several times in a step.
void collect_units(const ModulePtr& module, std::unordered_set<const torch::nn::Module*>& seen,
                   std::vector<std::shared_ptr<ModuleState>>& units) {
  if (!seen.insert(module.get()).second) {
    return;
  }
  if (std::shared_ptr<ModuleState> state = Registry::get().find(*module)) {
    const bool is_known = state->modules_to_run().are_several() &&
                          std::find(units.begin(), units.end(), state) != units.end();
    if (!is_known) {
      units.push_back(std::move(state));
    }
  }
  for (const ModulePtr& child : module->children()) {
    collect_units(child, seen, units);
  }
}

}  // namespace

void walk_modules(const ModulePtr& module, const std::string& name, const Visit& visit) {
  std::unordered_set<const torch::nn::Module*> seen;
  walk(module, name, visit, seen);
}

void walk_modules(const std::vector<ModulePtr>& modules, const Visit& visit) {
  std::unordered_set<const torch::nn::Module*> seen;
  for (size_t i = 0; i < modules.size(); ++i) {
    walk(modules[i], modules.size() == 1 ? "" : std::to_string(i), visit, seen);
  }
}

std::string join_names(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::vector<std::shared_ptr<ModuleState>> units_below(const std::vector<ModulePtr>& modules) {
  std::vector<std::shared_ptr<ModuleState>> units;
  std::unordered_set<const torch::nn::Module*> seen;
  for (const ModulePtr& module : modules) {
    collect_units(module, seen, units);
  }
  return units;
}

std::vector<ParamRef> params_below(const ModuleState& root) {
  const std::vector<ModulePtr> modules = root.modules();
  std::unordered_map<const c10::TensorImpl*, ParamRef> by_tensor;
  for (const std::shared_ptr<ModuleState>& unit : units_below(modules)) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        by_tensor[group->key(i)] = {"", group.get(), i};
      }
    }
  }
  std::vector<ParamRef> params;
  walk_modules(modules, [&](const std::string& name, const ModulePtr& visited) {
    for (const auto& param : visited->named_parameters(/*recurse=*/false)) {
      const auto found = by_tensor.find(param.value().unsafeGetTensorImpl());
      if (found != by_tensor.end()) {
        found->second.fqn = join_names(name, param.key());
        params.push_back(found->second);
        by_tensor.erase(found);
      }
    }
    return true;
  });
  return params;
}

LocalShard part_of(const ParamRef& param, const at::Tensor& flat) {
  LocalShard part = param.group->store().part_of(flat, param.index);
  part.fqn = param.fqn;
  return part;
}

}  // namespace fsdp
