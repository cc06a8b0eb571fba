#pragma once

#include <memory>
#include <vector>

#include "fsdp_runtime/plan/wrap_plan.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// What a policy looks at: the modules at and below a root, and beside each its node.
struct ModuleTree {
  std::vector<plan::WrapNode> nodes;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
};

/// Without modules that are units, or ignored, and what is in them. A module that can be reached
/// twice is there once. Errors: TORCH_CHECK if one of `ignored` is not below `root`.
ModuleTree module_tree(const std::shared_ptr<torch::nn::Module>& root,
                       const std::vector<std::shared_ptr<torch::nn::Module>>& ignored);

}  // namespace fsdp
