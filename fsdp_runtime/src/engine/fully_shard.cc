#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/strides.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <typeinfo>
#include <variant>

#include "fsdp_runtime/src/comm/worlds.h"
#include "fsdp_runtime/src/engine/autograd_hooks.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/part_groups.h"
#include "fsdp_runtime/src/engine/placement_agreement.h"
#include "fsdp_runtime/src/engine/registry.h"
#include "fsdp_runtime/src/engine/unit_parameters.h"

namespace fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using Modules = std::vector<ModulePtr>;

/// For messages.
std::string names_of(const Modules& modules) {
  std::string names;
  for (const ModulePtr& module : modules) {
    names += (names.empty() ? "" : ", ") + module->name();
  }
  return names;
}

void check_modules(const Modules& modules) {
  TORCH_CHECK(!modules.empty(), "fully_shard: no module in the list");
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModulePtr& module = modules[i];
    TORCH_CHECK(module, "fully_shard: module is null");
    TORCH_CHECK(!Registry::get().find(*module), "fully_shard: ", module->name(),
                " has been sharded already");
    TORCH_CHECK(std::count(modules.begin(), modules.end(), module) == 1,
                "fully_shard: ", module->name(), " is in the list of modules twice");
    // What is derived from them may have a forward.
    const torch::nn::Module& held = *module;
    const std::type_info& type = typeid(held);
    const bool is_container =
        type == typeid(torch::nn::ModuleListImpl) || type == typeid(torch::nn::ModuleDictImpl);
    TORCH_CHECK(
        !is_container, "fully_shard: ", module->name(),
        " is a container without forward, so nothing would gather its parameters; shard the "
        "modules in it, or the module around it");
  }
}

void check_options(const FullyShardOptions& options) {
  const DeviceMesh& mesh = *options.mesh;
  TORCH_CHECK(mesh.ndim() <= 2, "fully_shard: a mesh of ", mesh.ndim(),
              " axes; one that shards, or one that replicates and one that shards, expected: take "
              "them by DeviceMesh::slice");
  check_reshard_after_forward(options.reshard_after_forward, mesh.size(mesh.ndim() - 1));
  TORCH_CHECK(options.limit_all_gathers.value_or(1) >= 1, "fully_shard: limit_all_gathers is ",
              options.limit_all_gathers.value_or(1),
              "; at least 1 expected, or none: to gather nothing ahead, turn off forward_prefetch "
              "and backward_prefetch");
  for (const at::Tensor& ignored : options.ignored_params) {
    TORCH_CHECK(ignored.defined(), "fully_shard: an undefined tensor in ignored_params");
  }
}

/// Before anything of the module is changed.
void check_reduction_dtype(const std::vector<NamedParameter>& params, const GroupOptions& options) {
  const at::ScalarType dtype = reduce_dtype(params, options);
  const bool is_reduced = params.front().tensor.requires_grad() &&
                          (options.comm->size() > 1 || options.replicas != nullptr);
  const bool can_be_reduced =
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
  TORCH_CHECK(!is_reduced || can_be_reduced, "fully_shard: the gradient of parameter ",
              params.front().fqn, " would be reduced in ", dtype,
              ", which no group can; float32, float64, bfloat16 or float16 expected. ",
              params.front().tensor.is_complex()
                  ? "Freeze the parameter, or make it of two real ones"
                  : "Set mp_policy.reduce_dtype, or freeze the parameter");
}

std::vector<std::shared_ptr<ParamGroup>> make_groups(const std::vector<NamedParameter>& params,
                                                     const FullyShardOptions& options) {
  // Ordered by first appearance, so that all ranks have the same groups in the same order.
  std::vector<std::vector<NamedParameter>> kinds;
  std::map<std::tuple<at::ScalarType, bool, bool>, size_t> kind_of;
  for (const NamedParameter& param : params) {
    const auto key = std::make_tuple(param.tensor.scalar_type(), param.tensor.requires_grad(),
                                     param.keeps_dtype);
    const auto [it, is_new] = kind_of.try_emplace(key, kinds.size());
    if (is_new) {
      kinds.emplace_back();
    }
    kinds[it->second].push_back(param);
  }
  const DeviceMesh& mesh = *options.mesh;
  const int64_t shard_axis = mesh.ndim() - 1;
  const GroupOptions group_options{
      .comm = mesh.group(shard_axis),
      .replicas = shard_axis == 1 && mesh.size(0) > 1 ? mesh.group(0) : nullptr,
      .mesh_axes = {mesh.axis_names().back()},
      .param_dtype = options.mp_policy.param_dtype,
      .reduce_dtype = options.mp_policy.reduce_dtype,
      .offload_policy = options.offload_policy,
  };
  const auto options_of = [&group_options](const std::vector<NamedParameter>& kind) {
    GroupOptions own = group_options;
    if (kind.front().keeps_dtype) {
      own.param_dtype.reset();
      own.reduce_dtype.reset();
    }
    return own;
  };
  for (const std::vector<NamedParameter>& kind : kinds) {
    check_reduction_dtype(kind, options_of(kind));
  }
  std::vector<std::shared_ptr<ParamGroup>> groups;
  groups.reserve(kinds.size());
  for (const std::vector<NamedParameter>& kind : kinds) {
    groups.push_back(std::make_shared<ParamGroup>(kind, options_of(kind)));
  }
  // When nothing can fail any more: on a disk there may be no room.
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i]->retarget(kinds[i]);
  }
  return groups;
}

/// The module of the unit that has the parameter, the first if several have it.
ModulePtr module_of(const ModuleState& state, const at::Tensor& parameter) {
  const Modules modules = state.modules();
  const auto has_it = [&parameter](const ModulePtr& module) {
    const std::vector<at::Tensor> all = module->parameters();
    return std::any_of(all.begin(), all.end(),
                       [&](const at::Tensor& one) { return one.is_same(parameter); });
  };
  return modules.size() == 1 ? modules.front()
                             : *std::find_if(modules.begin(), modules.end(), has_it);
}

void install_gradient_hooks(const std::vector<NamedParameter>& params,
                            const std::shared_ptr<ModuleState>& state) {
  std::map<const c10::TensorImpl*, at::Tensor> tensors;
  for (const NamedParameter& param : params) {
    tensors.emplace(param.tensor.unsafeGetTensorImpl(), param.tensor);
  }
  for (const std::shared_ptr<ParamGroup>& group : state->groups()) {
    for (size_t i = 0; i < group->size(); ++i) {
      const at::Tensor& tensor = tensors.at(group->key(i));
      torch::autograd::impl::set_post_acc_grad_hooks(
          tensor, std::make_unique<GradientHook>(state, *group, i));
      Registry::get().claim(tensor, {group->store().fqn(i), module_of(*state, tensor)});
    }
  }
}

/// Sets every parameter's and unit's name to its fqn below the root, for messages.
void rename_from(const ModuleState& root) {
  for (const ParamRef& param : params_below(root)) {
    param.group->set_fqn(param.index, param.fqn);
    Registry::get().rename_claim(param.group->key(param.index), param.fqn);
  }
  std::map<ModuleState*, std::string> names;  // looked up only
  walk_modules(root.modules(), [&names](const std::string& name, const ModulePtr& visited) {
    if (const std::shared_ptr<ModuleState> unit = Registry::get().find(*visited)) {
      const auto [known, is_new] = names.try_emplace(unit.get(), name);
      if (!is_new) {
        known->second += ", " + name;
      }
      unit->modules_to_run().set_name(*visited, name);
      unit->set_name(known->second);
    }
    return true;
  });
}

/// Check of everything that can be checked before the first parameter is modified.
void check_nested_units(const Modules& modules) {
  const std::vector<std::shared_ptr<ModuleState>> units = units_below(modules);
  for (const std::shared_ptr<ModuleState>& unit : units) {
    const std::shared_ptr<ModuleState> root = unit->context().root();
    TORCH_CHECK(!root || std::find(units.begin(), units.end(), root) != units.end(),
                "fully_shard: ", names_of(modules), " contains ", unit->module()->name(),
                ", whose root ", root ? root->module()->name() : "",
                " lies outside it; shard the nested modules first and the root last");
    for (const ModulePtr& part : unit->modules()) {
      const bool is_inside =
          std::any_of(modules.begin(), modules.end(),
                      [&part](const ModulePtr& module) { return contains(module, part); });
      TORCH_CHECK(is_inside, "fully_shard: ", names_of(modules), " contains ",
                  unit->module()->name(), ", which is one unit with ", part->name(),
                  " outside it; shard a module around all of them");
    }
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      group->check_unused();
    }
  }
}

/// Whose collectives read unreduced gradients: the reduce-scatter in the row; the all-reduce if
/// that is one rank.
const std::shared_ptr<Collectives>& reducing_group(const DeviceMesh& mesh) {
  const int64_t shard_axis = mesh.ndim() - 1;
  return mesh.group(mesh.size(shard_axis) > 1 ? shard_axis : 0);
}

std::shared_ptr<DeviceMesh> default_mesh() {
  const std::shared_ptr<Collectives> world = Worlds::get().only("fully_shard without a mesh");
  return init_device_mesh(world->device().type(), {world->size()}, {"dp_shard"}, world);
}

}  // namespace

FSDPModule fully_shard(const ModulePtr& module, const FullyShardOptions& options) {
  return fully_shard(Modules{module}, options);
}

FSDPModule fully_shard(const Modules& modules, const FullyShardOptions& given) {
  check_modules(modules);
  FullyShardOptions options = given;
  if (!options.mesh) {
    options.mesh = default_mesh();
  }
  check_options(options);
  check_nested_units(modules);
  const std::vector<NamedParameter> params = parameters_of_unit(modules, options);
  check_same_placements(params, *options.mesh, names_of(modules));
  options.ignored_params.clear();  // not to keep them alive
  options.shard_placement_fn = nullptr;
  auto state = std::make_shared<ModuleState>(modules, options, make_groups(params, options));
  if (!std::holds_alternative<std::monostate>(options.offload_policy)) {
    move_buffers(modules, options.mesh->group()->device());
  }
  install_gradient_hooks(params, state);
  for (const ModulePtr& module : modules) {
    Registry::get().add(module, state);
  }

  // The topmost unit is the root: its context replaces the one that its nested units shared so far.
  const std::vector<std::shared_ptr<ModuleState>> units = units_below(modules);
  const c10::Device device =
      params.empty() ? options.mesh->group()->device() : params.front().tensor.device();
  auto context = std::make_shared<RunContext>(
      reducing_group(*options.mesh), device,
      PrefetchOptions{options.backward_prefetch, options.forward_prefetch,
                      options.limit_all_gathers});
  for (size_t i = 0; i < units.size(); ++i) {
    units[i]->set_context(context, static_cast<int64_t>(i));
  }
  context->set_units(units);
  rename_from(*state);
  return FSDPModule(state);
}

FSDPModule fsdp_module(const torch::nn::Module& module) {
  return FSDPModule(Registry::get().find(module));
}

at::Tensor unmaterialized_parameter(at::IntArrayRef sizes, at::ScalarType dtype,
                                    c10::Device device) {
  int64_t numel = 1;
  for (int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "unmaterialized_parameter: negative dimension in ", sizes);
    numel *= size;
  }
  if (!device.is_cpu() && !device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();  // as at::empty does
  }
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  tensor.set_(storage, 0, sizes, c10::contiguous_strides(sizes));
  return tensor;
}

}  // namespace fsdp
