#include "fsdp_runtime/src/engine/unit_parameters.h"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <variant>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/registry.h"

namespace fsdp {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

bool contains(const ModulePtr& outer, const ModulePtr& inner) {
  bool is_found = false;
  walk_modules(outer, "", [&](const std::string&, const ModulePtr& visited) {
    is_found = is_found || visited == inner;
    return !is_found;
  });
  return is_found;
}

namespace {

void check_parameter(const std::string& fqn, const at::Tensor& tensor,
                     const FullyShardOptions& options) {
  TORCH_CHECK(tensor.dim() > 0, "fully_shard: parameter ", fqn,
              " has no dimension to shard; make it a tensor of shape [1]");
  const c10::Device device = options.mesh->group()->device();
  const bool is_offloaded = !std::holds_alternative<std::monostate>(options.offload_policy);
  TORCH_CHECK(
      !is_offloaded || tensor.is_cpu(), "fully_shard: parameter ", fqn, " is on ", tensor.device(),
      ", but with an offload_policy parameters should be on the CPU; leave the model there, "
      "or make it without memory: fsdp::deferred_init, or fsdp::unmaterialized_parameter "
      "for torch::kCPU");
  TORCH_CHECK(is_offloaded || tensor.device() == device, "fully_shard: parameter ", fqn, " is on ",
              tensor.device(), ", the mesh's group is on ", device,
              "; move the model there before, model->to(world->device()), or make it without "
              "memory with fsdp::unmaterialized_parameter");
  TORCH_CHECK(tensor.is_contiguous(), "fully_shard: parameter ", fqn, " of shape ", tensor.sizes(),
              " and strides ", tensor.strides(), " is not contiguous");
  TORCH_CHECK(tensor.is_leaf(), "fully_shard: parameter ", fqn, " is not a leaf of autograd");
}

/// None: no function says it.
std::optional<int64_t> shard_dim_of(const std::string& fqn, const at::Tensor& tensor,
                                    const FullyShardOptions& options) {
  if (!options.shard_placement_fn) {
    return std::nullopt;
  }
  const int64_t dims = tensor.dim();
  const int64_t asked = options.shard_placement_fn(fqn, tensor).value_or(ShardPlacement{0}).dim;
  TORCH_CHECK(asked >= -dims && asked < dims, "fully_shard: shard_placement_fn gives dimension ",
              asked, " for parameter ", fqn, " of shape ", tensor.sizes(), "; one from ", -dims,
              " to ", dims - 1, " expected");
  const int64_t dim = asked < 0 ? asked + dims : asked;
  const int64_t ranks = options.mesh->size(options.mesh->ndim() - 1);
  TORCH_CHECK(dim == 0 || tensor.size(dim) % ranks == 0, "fully_shard: parameter ", fqn,
              " of shape ", tensor.sizes(), " does not divide evenly along dimension ", dim,
              " over ", ranks,
              " ranks, which only dimension 0 need not; let shard_placement_fn give 0, or one that "
              "divides");
  return dim;
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

/// That of `modules` below which `module` is.
const ModulePtr& top_of(const std::vector<ModulePtr>& modules, const ModulePtr& module) {
  return *std::find_if(modules.begin(), modules.end(),
                       [&module](const ModulePtr& top) { return contains(top, module); });
}

}  // namespace

std::vector<NamedParameter> parameters_of_unit(const std::vector<ModulePtr>& modules,
                                               const FullyShardOptions& options) {
  std::vector<NamedParameter> params;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& ignored : options.ignored_params) {
    seen.insert(ignored.unsafeGetTensorImpl());
  }
  walk_modules(modules, [&](const std::string& name, const ModulePtr& visited) {
    if (Registry::get().find(*visited)) {
      return false;
    }
    const auto& keeps_dtype = options.mp_policy.keeps_dtype;
    const bool keeps = keeps_dtype && keeps_dtype(*visited);
    for (const auto& param : visited->named_parameters(/*recurse=*/false)) {
      const std::string fqn = join_names(name, param.key());
      if (!seen.insert(param.value().unsafeGetTensorImpl()).second) {
        continue;
      }
      if (const std::optional<Claim> owner = Registry::get().claim_of(param.value())) {
        throw_claimed(top_of(modules, visited), fqn, *owner);
      }
      check_parameter(fqn, param.value(), options);
      params.push_back({fqn, param.value(), keeps, shard_dim_of(fqn, param.value(), options)});
    }
    return true;
  });
  return params;
}

void move_buffers(const std::vector<ModulePtr>& modules, c10::Device device) {
  const at::NoGradGuard no_grad;
  walk_modules(modules, [device](const std::string&, const ModulePtr& visited) {
    if (Registry::get().find(*visited)) {
      return false;
    }
    for (at::Tensor& buffer : visited->buffers(/*recurse=*/false)) {
      if (buffer.defined() && buffer.device() != device) {
        buffer.set_data(buffer.to(device));
      }
    }
    return true;
  });
}

}  // namespace fsdp
