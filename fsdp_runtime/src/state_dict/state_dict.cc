#include <fsdp/state_dict.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fsdp/optim.h>

#include <functional>
#include <memory>
#include <unordered_map>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/state_dict/model_load.h"
#include "fsdp_runtime/src/state_dict/named_tensors.h"
#include "fsdp_runtime/src/state_dict/optimizer_load.h"
#include "fsdp_runtime/src/state_dict/optimizer_read.h"
#include "fsdp_runtime/src/state_dict/texts.h"
#include "fsdp_runtime/src/state_dict/whole_tensors.h"

namespace fsdp {
namespace {

ModuleState& state_of_root(const char* function, const FSDPModule& model) {
  TORCH_CHECK(model, function, ": empty FSDPModule handle; use the one that fully_shard returns");
  return *model.state();
}

/// Runs `attempt`, which is local; returns what it has thrown, or returned, as a problem.
std::string problem_of(const std::function<std::string()>& attempt) {
  try {
    return attempt();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

uint64_t digest_of_call(uint64_t model, uint64_t rest, const StateDictOptions& options) {
  TextDigest digest;
  digest.mix(model);
  digest.mix(rest);
  for (const bool flag : {options.full_state_dict, options.cpu_offload,
                          options.ignore_frozen_params, options.broadcast_from_rank0}) {
    digest.mix(flag);
  }
  return digest.value();
}

// --- get ---

std::vector<NamedTensor> tensors_to_get(const ModuleState& root, const StateDictOptions& options) {
  std::vector<NamedTensor> tensors = named_tensors(root);
  if (options.ignore_frozen_params) {
    std::erase_if(tensors, [](const NamedTensor& named) { return named.is_frozen(); });
  }
  return tensors;
}

ModelStateDict shards_in(const std::vector<NamedTensor>& tensors, bool cpu_offload) {
  ModelStateDict dict("Tensor");
  for (const NamedTensor& named : tensors) {
    if (!cpu_offload) {
      dict.insert(named.name, view_of(named));
    } else if (named.sharded) {
      LocalShard part = part_of(*named.sharded, named.sharded->group->store().shard());
      part.fqn = named.name;
      part.local = copy_of(part.local, /*to_cpu=*/true);
      dict.insert(named.name, std::move(part));
    } else {
      dict.insert(named.name, copy_of(named.tensor, /*to_cpu=*/true));
    }
  }
  return dict;
}

/// What a rank keeps of a model, by the module's own tensors. Looked up only, never iterated.
using WholeTensors = std::unordered_map<const c10::TensorImpl*, at::Tensor>;

/// Gathers those of `tensors` that are in `group`; a rank that `keeps` has them in `kept`.
void gather_group(const ParamGroup& group, const std::vector<NamedTensor>& tensors,
                  bool cpu_offload, const ModelRanks& ranks, bool keeps, WholeTensors& kept) {
  std::vector<at::Tensor> whole(group.size());
  bool is_wanted = false;
  for (const NamedTensor& named : tensors) {
    if (!named.sharded || named.sharded->group != &group) {
      continue;
    }
    is_wanted = true;
    at::Tensor& flat = whole[named.sharded->index];
    if (keeps && !flat.defined()) {
      flat = empty_whole(group, named.sharded->index, group.store().dtype(), cpu_offload);
      kept[named.tensor.unsafeGetTensorImpl()] =
          flat.view(group.store().shape(named.sharded->index));
    }
  }
  if (is_wanted) {
    gather_whole(group, parameter_parts(group), whole, group.store().dtype(), ranks.purpose());
  }
}

/// A tensor with several names is there once.
ModelStateDict whole_of(ModuleState& root, const std::vector<NamedTensor>& tensors,
                        bool cpu_offload, const ModelRanks& ranks, bool keeps) {
  WholeTensors kept;
  for (const std::shared_ptr<ModuleState>& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      gather_group(*group, tensors, cpu_offload, ranks, keeps, kept);
    }
  }
  ModelStateDict dict("Tensor");
  if (!keeps) {
    return dict;
  }
  for (const NamedTensor& named : tensors) {
    at::Tensor& whole = kept[named.tensor.unsafeGetTensorImpl()];
    if (!whole.defined()) {
      whole = copy_of(named.tensor, cpu_offload);
    }
    dict.insert(named.name, whole);
  }
  return dict;
}

std::unique_ptr<OptimizerAccess> access_to_ref(const OptimizerRef& optimizer,
                                               const std::vector<ParamRef>& params) {
  return std::visit([&](auto* pointer) { return access_to(*pointer, params); }, optimizer.get());
}

/// `has_model`: whether the model's tensors are wanted. `optimizer`: null: its states are not.
std::pair<ModelStateDict, OptimizerStateDict> get_states(const char* function,
                                                         const FSDPModule& model, bool has_model,
                                                         const OptimizerRef* optimizer,
                                                         const StateDictOptions& options) {
  at::NoGradGuard no_grad;
  ModuleState& root = state_of_root(function, model);
  const std::vector<NamedTensor> tensors = tensors_to_get(root, options);
  const std::vector<ParamRef> params = params_below(root);
  std::unique_ptr<OptimizerRead> read;
  const std::string problem = problem_of([&]() -> std::string {
    if (optimizer != nullptr) {
      read = std::make_unique<OptimizerRead>(*access_to_ref(*optimizer, params), params);
    }
    return options.broadcast_from_rank0
               ? "broadcast_from_rank0 is an option of the functions that set"
               : "";
  });
  if (!options.full_state_dict) {
    TORCH_CHECK(problem.empty(), function, ": ", problem);
    return {has_model ? shards_in(tensors, options.cpu_offload) : ModelStateDict("Tensor"),
            read ? read->shards(options.cpu_offload) : OptimizerStateDict()};
  }
  const ModelRanks ranks(*root.mesh(), function);
  ranks.agree(problem, digest_of_call(digest_of(tensors), read ? read->digest() : 0, options));
  const bool keeps = !options.cpu_offload || ranks.is_first();
  return ranks.together([&]() -> std::pair<ModelStateDict, OptimizerStateDict> {
    return {has_model ? whole_of(root, tensors, options.cpu_offload, ranks, keeps)
                      : ModelStateDict("Tensor"),
            read ? read->whole(ranks, options.cpu_offload, keeps) : OptimizerStateDict()};
  });
}

// --- set ---

/// What is to be set; null: nothing.
struct Given {
  const ModelStateDict* model = nullptr;
  const OptimizerRef* optimizer = nullptr;
  const OptimizerStateDict* states = nullptr;
};

/// Collective. Null: nothing is loaded there.
void take_plans_of_first(const ModelRanks& ranks, ModelLoad* model, OptimizerLoad* optimizer) {
  ranks.together([&] {
    if (model != nullptr) {
      model->take_plan_of_first(ranks);
    }
    if (optimizer != nullptr) {
      optimizer->take_plan_of_first(ranks);
    }
  });
  if (optimizer != nullptr) {
    ranks.agree(problem_of([&] { return optimizer->problem_of_kept(); }), /*digest=*/0);
  }
}

IncompatibleKeys set_states(const char* function, const FSDPModule& model, const Given& given,
                            const StateDictOptions& options) {
  at::NoGradGuard no_grad;
  ModuleState& root = state_of_root(function, model);
  const ModelRanks ranks(*root.mesh(), function);
  const std::vector<NamedTensor> tensors = named_tensors(root);
  const std::vector<ParamRef> params = params_below(root);
  const bool reads = !options.broadcast_from_rank0 || ranks.is_first();
  ModelLoad model_load(tensors, options);
  std::unique_ptr<OptimizerAccess> access;
  std::unique_ptr<OptimizerLoad> optimizer_load;
  TextDigest digest;
  const std::string problem = problem_of([&]() -> std::string {
    std::vector<std::string> problems;
    if (options.broadcast_from_rank0 && !options.full_state_dict) {
      problems.emplace_back("broadcast_from_rank0 needs full_state_dict");
    }
    if (given.model != nullptr && reads) {
      problems.push_back(model_load.plan(*given.model));
    }
    if (given.optimizer != nullptr) {
      access = access_to_ref(*given.optimizer, params);
      digest.mix(digest_of(*access));
      optimizer_load = std::make_unique<OptimizerLoad>(*access, params, options);
      if (reads) {
        problems.push_back(optimizer_load->plan(*given.states));
      }
    }
    if (!options.broadcast_from_rank0) {
      digest.mix(model_load.digest());
      digest.mix(optimizer_load ? optimizer_load->digest() : 0);
    }
    return joined(problems);
  });
  ranks.agree(problem, digest_of_call(digest_of(tensors), digest.value(), options));
  if (options.broadcast_from_rank0) {
    take_plans_of_first(ranks, given.model != nullptr ? &model_load : nullptr,
                        optimizer_load.get());
  }
  ranks.together([&] {
    if (given.model != nullptr) {
      FSDPModule(model).prepare_to_write();
      model_load.write(ranks);
    }
    if (optimizer_load) {
      optimizer_load->write(ranks);
    }
  });
  return model_load.keys();
}

}  // namespace

ModelStateDict get_model_state_dict(const FSDPModule& model, const StateDictOptions& options) {
  return get_states("get_model_state_dict", model, true, nullptr, options).first;
}

OptimizerStateDict get_optimizer_state_dict(const FSDPModule& model, OptimizerRef optimizer,
                                            const StateDictOptions& options) {
  return get_states("get_optimizer_state_dict", model, false, &optimizer, options).second;
}

std::pair<ModelStateDict, OptimizerStateDict> get_state_dict(const FSDPModule& model,
                                                             OptimizerRef optimizer,
                                                             const StateDictOptions& options) {
  return get_states("get_state_dict", model, true, &optimizer, options);
}

IncompatibleKeys set_model_state_dict(const FSDPModule& model, const ModelStateDict& state_dict,
                                      const StateDictOptions& options) {
  return set_states("set_model_state_dict", model, {.model = &state_dict}, options);
}

void set_optimizer_state_dict(const FSDPModule& model, OptimizerRef optimizer,
                              const OptimizerStateDict& state_dict,
                              const StateDictOptions& options) {
  set_states("set_optimizer_state_dict", model, {.optimizer = &optimizer, .states = &state_dict},
             options);
}

IncompatibleKeys set_state_dict(const FSDPModule& model, OptimizerRef optimizer,
                                const ModelStateDict& model_state_dict,
                                const OptimizerStateDict& optimizer_state_dict,
                                const StateDictOptions& options) {
  return set_states("set_state_dict", model, {&model_state_dict, &optimizer, &optimizer_state_dict},
                    options);
}

}  // namespace fsdp
