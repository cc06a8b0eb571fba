#include "fsdp_runtime/src/engine/modules_to_run.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>

namespace fsdp {

ModulesToRun::ModulesToRun(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  modules_.reserve(modules.size());
  for (const auto& module : modules) {
    modules_.push_back({module, module.get(), module->name()});
  }
}

ModulesToRun::One& ModulesToRun::find(const torch::nn::Module& module) {
  const auto found = std::find_if(modules_.begin(), modules_.end(),
                                  [&module](const One& one) { return one.key == &module; });
  TORCH_INTERNAL_ASSERT(found != modules_.end());
  return *found;
}

std::vector<std::shared_ptr<torch::nn::Module>> ModulesToRun::alive() const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const One& one : modules_) {
    if (std::shared_ptr<torch::nn::Module> module = one.module.lock()) {
      modules.push_back(std::move(module));
    }
  }
  return modules;
}

bool ModulesToRun::are_gone() const {
  return std::all_of(modules_.begin(), modules_.end(),
                     [](const One& one) { return one.module.expired(); });
}

void ModulesToRun::set_name(const torch::nn::Module& module, const std::string& name) {
  find(module).name = name;
}

bool ModulesToRun::is_running(const torch::nn::Module& module) const {
  return std::any_of(modules_.begin(), modules_.end(),
                     [&module](const One& one) { return one.key == &module && one.running > 0; });
}

bool ModulesToRun::begin(const torch::nn::Module& module) {
  const bool is_first = !is_open_;
  if (is_first) {
    is_open_ = true;
    first_ = &module;
    for (One& one : modules_) {
      one.is_left = true;
    }
  }
  ++find(module).running;
  return is_first;
}

bool ModulesToRun::end(const torch::nn::Module& module) {
  One& ended = find(module);
  ended.running = std::max(0, ended.running - 1);  // it may have been cleared meanwhile
  ended.is_left = false;
  is_open_ = std::any_of(modules_.begin(), modules_.end(),
                         [](const One& one) { return one.is_left || one.running > 0; });
  return !is_open_;
}

std::string ModulesToRun::names_left() const {
  std::string names;
  for (const One& one : modules_) {
    if (one.is_left) {
      names += (names.empty() ? "" : ", ") + one.name;
    }
  }
  return names;
}

void ModulesToRun::clear() {
  is_open_ = false;
  for (One& one : modules_) {
    one.is_left = false;
    one.running = 0;
  }
}

}  // namespace fsdp
