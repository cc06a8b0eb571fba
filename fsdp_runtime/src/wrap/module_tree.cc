#include "fsdp_runtime/src/wrap/module_tree.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

bool has_forward(const torch::nn::Module& module) {
  using namespace torch::nn;
  return module.as<ModuleListImpl>() == nullptr && module.as<ModuleDictImpl>() == nullptr &&
         module.as<ParameterListImpl>() == nullptr && module.as<ParameterDictImpl>() == nullptr;
}

class TreeMaker {
 public:
  explicit TreeMaker(const std::vector<ModulePtr>& ignored) {
    for (const ModulePtr& module : ignored) {
      TORCH_CHECK(module, "fully_shard: one of ignored_modules is null");
      ignored_.insert(module.get());
      for (const at::Tensor& param : module->parameters()) {
        ignored_params_.insert(param.unsafeGetTensorImpl());
      }
    }
  }

  void add(const ModulePtr& module, const std::string& name) {
    seen_.insert(module.get());
    const size_t node = tree_.nodes.size();
    tree_.modules.push_back(module);
    tree_.nodes.push_back({name, params_of(*module), {}, has_forward(*module)});
    for (const auto& child : module->named_children()) {
      if (is_left_out(child.value())) {
        continue;
      }
      tree_.nodes[node].children.push_back(tree_.nodes.size());
      add(child.value(), join_names(name, child.key()));
    }
  }

  ModuleTree take() { return std::move(tree_); }

 private:
  bool is_left_out(const ModulePtr& module) const {
    return seen_.contains(module.get()) || ignored_.contains(module.get()) ||
           Registry::get().find(*module) != nullptr;
  }

  std::vector<plan::WrapParam> params_of(const torch::nn::Module& module) {
    std::vector<plan::WrapParam> params;
    for (const auto& param : module.named_parameters(/*recurse=*/false)) {
      const c10::TensorImpl* tensor = param.value().unsafeGetTensorImpl();
      if (!ignored_params_.contains(tensor)) {
        const size_t id = ids_.try_emplace(tensor, ids_.size()).first->second;
        params.push_back({param.key(), id, param.value().numel()});
      }
    }
    return params;
  }

  ModuleTree tree_;
  // Looked up only, never iterated.
  std::unordered_set<const torch::nn::Module*> seen_;
  std::unordered_set<const torch::nn::Module*> ignored_;
  std::unordered_set<const c10::TensorImpl*> ignored_params_;
  std::unordered_map<const c10::TensorImpl*, size_t> ids_;
};

void check_is_below(const ModulePtr& root, const ModulePtr& ignored) {
  const std::vector<ModulePtr> below = root->modules(/*include_self=*/false);
  TORCH_CHECK(std::find(below.begin(), below.end(), ignored) != below.end(),
              "fully_shard: ", ignored->name(), " of ignored_modules is not below ", root->name());
}

}  // namespace

ModuleTree module_tree(const ModulePtr& root, const std::vector<ModulePtr>& ignored) {
  TORCH_CHECK(root, "fully_shard: module is null");
  TreeMaker maker(ignored);
  for (const ModulePtr& module : ignored) {
    check_is_below(root, module);
  }
  maker.add(root, "");
  return maker.take();
}

}  // namespace fsdp
