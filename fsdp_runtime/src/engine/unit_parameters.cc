#include "fsdp_runtime/src/engine/unit_parameters.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

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
      check_parameter(fqn, param.value(), *options.mesh);
      params.push_back({fqn, param.value(), keeps});
    }
    return true;
  });
  return params;
}

}  // namespace fsdp
