#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/strides.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "fsdp_runtime/src/comm/worlds.h"
#include "fsdp_runtime/src/engine/autograd_hooks.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

void check_parameter(const std::string& fqn, const at::Tensor& tensor, const DeviceMesh& mesh) {
  TORCH_CHECK(tensor.dim() > 0, "fully_shard: parameter ", fqn,
              " has no dimension to shard; make it a tensor of shape [1]");
  const c10::Device device = mesh.group()->device();
  TORCH_CHECK(tensor.device() == device, "fully_shard: parameter ", fqn, " is on ", tensor.device(),
              ", the mesh's group is on ", device,
              "; move the model there before, model->to(world->device()), or make it without "
              "memory with fsdp::unmaterialized_parameter");
  TORCH_CHECK(tensor.is_contiguous(), "fully_shard: parameter ", fqn, " of shape ", tensor.sizes(),
              " and strides ", tensor.strides(), " is not contiguous");
  TORCH_CHECK(tensor.is_leaf(), "fully_shard: parameter ", fqn, " is not a leaf of autograd");
}

bool contains(const ModulePtr& outer, const ModulePtr& inner) {
  bool is_found = false;
  walk_modules(outer, "", [&](const std::string&, const ModulePtr& visited) {
    is_found = is_found || visited == inner;
    return !is_found;
  });
  return is_found;
}

[[noreturn]] void throw_claimed(const ModulePtr& module, const std::string& fqn,
                                const Claim& owner) {
  const ModulePtr unit = owner.unit.lock();
  TORCH_CHECK(!unit || !contains(unit, module), "fully_shard: ", module->name(), " lies inside ",
              unit->name(), ", which was sharded before it and has taken its parameter ", owner.fqn,
              "; shard the nested modules first and the module around them last");
  TORCH_CHECK(false, "fully_shard: parameter ", fqn, " of ", module->name(),
              " is the same tensor as ", owner.fqn,
              ", which another unit has sharded; shard the modules that share it as one unit");
}

/// The parameters at and below `module` that no unit owns yet, with their first names.
std::vector<NamedParameter> unclaimed_parameters(const ModulePtr& module, const DeviceMesh& mesh) {
  std::vector<NamedParameter> params;
  std::unordered_set<const c10::TensorImpl*> seen;
  walk_modules(module, "", [&](const std::string& name, const ModulePtr& visited) {
    if (Registry::get().find(*visited)) {
      return false;
    }
    for (const auto& param : visited->named_parameters(/*recurse=*/false)) {
      const std::string fqn = join_names(name, param.key());
      if (!seen.insert(param.value().unsafeGetTensorImpl()).second) {
        continue;
      }
      if (const std::optional<Claim> owner = Registry::get().claim_of(param.value())) {
        throw_claimed(module, fqn, *owner);
      }
      check_parameter(fqn, param.value(), mesh);
      params.push_back({fqn, param.value()});
    }
    return true;
  });
  return params;
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
  std::map<std::pair<at::ScalarType, bool>, size_t> kind_of;
  for (const NamedParameter& param : params) {
    const auto key = std::make_pair(param.tensor.scalar_type(), param.tensor.requires_grad());
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
  };
  for (const std::vector<NamedParameter>& kind : kinds) {
    check_reduction_dtype(kind, group_options);
  }
  std::vector<std::shared_ptr<ParamGroup>> groups;
  groups.reserve(kinds.size());
  for (const std::vector<NamedParameter>& kind : kinds) {
    groups.push_back(std::make_shared<ParamGroup>(kind, group_options));
  }
  return groups;
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
      Registry::get().claim(tensor, {group->store().fqn(i), state->module()});
    }
  }
}

/// Sets every parameter's and unit's name to its fqn below the root, for messages.
void rename_from(const ModuleState& root) {
  for (const ParamRef& param : params_below(root)) {
    param.group->set_fqn(param.index, param.fqn);
    Registry::get().rename_claim(param.group->key(param.index), param.fqn);
  }
  walk_modules(root.module(), "", [](const std::string& name, const ModulePtr& visited) {
    if (const std::shared_ptr<ModuleState> unit = Registry::get().find(*visited)) {
      for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
        group->set_unit_name(name);
      }
    }
    return true;
  });
}

/// Check of everything that can be checked before the first parameter is modified.
void check_nested_units(const ModulePtr& module) {
  const std::vector<std::shared_ptr<ModuleState>> units = units_below(module);
  for (const std::shared_ptr<ModuleState>& unit : units) {
    const std::shared_ptr<ModuleState> root = unit->context().root();
    TORCH_CHECK(!root || std::find(units.begin(), units.end(), root) != units.end(),
                "fully_shard: ", module->name(), " contains ", unit->module()->name(),
                ", whose root ", root ? root->module()->name() : "",
                " lies outside it; shard the nested modules first and the root last");
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      group->check_unused();
    }
  }
}

std::shared_ptr<DeviceMesh> default_mesh() {
  const std::shared_ptr<Collectives> world = Worlds::get().only("fully_shard without a mesh");
  return init_device_mesh(world->device().type(), {world->size()}, {"dp_shard"}, world);
}

}  // namespace

FSDPModule fully_shard(const ModulePtr& module, const FullyShardOptions& given) {
  TORCH_CHECK(module, "fully_shard: module is null");
  FullyShardOptions options = given;
  if (!options.mesh) {
    options.mesh = default_mesh();
  }
  TORCH_CHECK(options.mesh->ndim() <= 2, "fully_shard: a mesh of ", options.mesh->ndim(),
              " axes; one that shards, or one that replicates and one that shards, expected: take "
              "them by DeviceMesh::slice");
  TORCH_CHECK(!Registry::get().find(*module), "fully_shard: ", module->name(),
              " has been sharded already");
  check_nested_units(module);
  const std::vector<NamedParameter> params = unclaimed_parameters(module, *options.mesh);
  auto state = std::make_shared<ModuleState>(module, options, make_groups(params, options));
  install_gradient_hooks(params, state);
  Registry::get().add(module, state);

  // The topmost unit is the root: its context replaces the one that its nested units shared so far.
  const std::vector<std::shared_ptr<ModuleState>> units = units_below(module);
  const c10::Device device =
      params.empty() ? options.mesh->group()->device() : params.front().tensor.device();
  // Gradients are read by the reduce-scatter in the row; by the all-reduce if that is one rank.
  const int64_t shard_axis = options.mesh->ndim() - 1;
  const int64_t reducing_axis = options.mesh->size(shard_axis) > 1 ? shard_axis : 0;
  auto context = std::make_shared<RunContext>(options.mesh->group(reducing_axis), device);
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
