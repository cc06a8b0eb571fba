#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

class ModuleState;
class ParamGroup;

/// A parameter of a group, with its fqn below some module.
struct ParamRef {
  std::string fqn;
  ParamGroup* group = nullptr;
  size_t index = 0;
};

/// Visits `module` and everything below it in registration order, with names; a module that can be
/// reached twice is visited once. `visit` returns whether to descend. Depth: the module tree's.
void walk_modules(const std::shared_ptr<torch::nn::Module>& module, const std::string& name,
                  const std::function<bool(const std::string&,
                                           const std::shared_ptr<torch::nn::Module>&)>& visit);

/// The same of several, of which each is named by its number: "0", "1"; one alone is "".
void walk_modules(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                  const std::function<bool(const std::string&,
                                           const std::shared_ptr<torch::nn::Module>&)>& visit);

/// "" + "weight" -> "weight"; "block" + "weight" -> "block.weight".
std::string join_names(const std::string& prefix, const std::string& name);

/// The units at and below `modules`, in registration order, each once.
std::vector<std::shared_ptr<ModuleState>> units_below(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
inline std::vector<std::shared_ptr<ModuleState>> units_below(
    const std::shared_ptr<torch::nn::Module>& module) {
  return units_below(std::vector<std::shared_ptr<torch::nn::Module>>{module});
}

/// The parameters of all units at and below `root`, in registration order, with fqns relative to
/// it. A parameter with several names is listed once, under its first. Below a unit of several
/// modules, names begin with the module's number.
std::vector<ParamRef> params_below(const ModuleState& root);

/// The parameter's part of `flat`, which has the layout of its group's shard, under the name of the
/// reference; without `local` if `flat` is undefined.
LocalShard part_of(const ParamRef& param, const at::Tensor& flat);

}  // namespace fsdp
