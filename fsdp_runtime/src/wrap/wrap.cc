#include <fsdp/wrap.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "fsdp_runtime/src/wrap/module_tree.h"
#include "fsdp_runtime/src/wrap/sequential_entries.h"

namespace fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

/// What a policy has chosen.
struct Wrapping {
  ModuleTree tree;
  std::vector<plan::WrapUnit> units;
  std::map<size_t, FullyShardOptions> own_options;  // by node
};

std::string name_of_unit(const ModuleTree& tree, size_t node) {
  const std::string& name = tree.nodes[node].name;
  return (name.empty() ? "the root " : name + ", a ") + tree.modules[node]->name();
}

void check_not_split(const Wrapping& wrapping) {
  const std::vector<plan::SplitParam> split =
      plan::split_params(wrapping.tree.nodes, wrapping.units);
  if (split.empty()) {
    return;
  }
  const plan::SplitParam& first = split.front();
  TORCH_CHECK(false, "fully_shard: by this policy two units would take one parameter: ", first.name,
              " is the same tensor as ", first.other_name, ", the one would be in ",
              name_of_unit(wrapping.tree, first.unit), ", the other in ",
              name_of_unit(wrapping.tree, first.other),
              "; let the policy leave out one of them, so that both are in the unit around it");
}

Wrapping choose(const ModulePtr& root, const WrapPolicy& policy,
                const std::vector<ModulePtr>& ignored) {
  Wrapping wrapping{module_tree(root, ignored), {}, {}};
  const ModuleTree& tree = wrapping.tree;
  const plan::WrapRule rule{
      .descends = [&](size_t node,
                      int64_t numel) { return policy.descends(*tree.modules[node], numel); },
      .wraps =
          [&](size_t node, int64_t numel) {
            WrapDecision decision = policy.wraps(*tree.modules[node], numel);
            if (decision.wraps && decision.options) {
              wrapping.own_options[node] = std::move(*decision.options);
            }
            return decision.wraps;
          },
  };
  wrapping.units = plan::choose_units(tree.nodes, rule);
  check_not_split(wrapping);
  return wrapping;
}

std::unordered_set<const torch::nn::Module*> modules_of(const Wrapping& wrapping) {
  std::unordered_set<const torch::nn::Module*> modules;
  for (const plan::WrapUnit& unit : wrapping.units) {
    modules.insert(wrapping.tree.modules[unit.node].get());
  }
  return modules;
}

/// By node, whether it is an entry of a torch::nn::Sequential.
std::vector<bool> are_entries(const ModuleTree& tree) {
  std::vector<bool> are(tree.nodes.size(), false);
  for (size_t node = 0; node < tree.nodes.size(); ++node) {
    if (tree.modules[node]->as<torch::nn::SequentialImpl>() != nullptr) {
      for (const size_t child : tree.nodes[node].children) {
        are[child] = true;
      }
    }
  }
  return are;
}

}  // namespace

std::vector<WrappedUnit> planned_units(const ModulePtr& module, const WrapPolicy& policy,
                                       const std::vector<ModulePtr>& ignored_modules) {
  const Wrapping wrapping = choose(module, policy, ignored_modules);
  const std::vector<bool> is_entry = are_entries(wrapping.tree);
  std::vector<WrappedUnit> planned;
  for (const plan::WrapUnit& unit : wrapping.units) {
    const torch::nn::Module& chosen = *wrapping.tree.modules[unit.node];
    planned.push_back({wrapping.tree.nodes[unit.node].name, chosen.name(), unit.numel,
                       is_entry[unit.node] || is_sharded_type(chosen)});
  }
  return planned;
}

FSDPModule fully_shard(const ModulePtr& module, const WrapPolicy& policy,
                       const FullyShardOptions& options,
                       const std::vector<ModulePtr>& ignored_modules) {
  const Wrapping wrapping = choose(module, policy, ignored_modules);
  FSDPModule root;
  for (const plan::WrapUnit& unit : wrapping.units) {
    const auto own = wrapping.own_options.find(unit.node);
    FullyShardOptions given = own == wrapping.own_options.end() ? options : own->second;
    for (const ModulePtr& ignored : ignored_modules) {
      const std::vector<at::Tensor> params = ignored->parameters();
      given.ignored_params.insert(given.ignored_params.end(), params.begin(), params.end());
    }
    root = fully_shard(wrapping.tree.modules[unit.node], given);
  }
  const std::unordered_set<const torch::nn::Module*> units = modules_of(wrapping);
  for (const ModulePtr& container : wrapping.tree.modules) {
    if (auto* sequential = container->as<torch::nn::SequentialImpl>()) {
      call_as_units(*sequential, units);
    }
  }
  return root;
}

}  // namespace fsdp
