#include "fsdp_runtime/src/state_dict/named_tensors.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <unordered_map>
#include <utility>

#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {
namespace {

// Looked up only, never iterated.
using ShardedByKey = std::unordered_map<const c10::TensorImpl*, ParamRef>;

void add_named(const torch::nn::Module& module, const std::string& prefix,
               const ShardedByKey& sharded, std::vector<NamedTensor>& all) {
  for (const auto& param : module.named_parameters(/*recurse=*/false)) {
    const auto found = sharded.find(param.value().unsafeGetTensorImpl());
    all.push_back({join_names(prefix, param.key()), param.value(), /*is_parameter=*/true,
                   found == sharded.end() ? std::nullopt : std::make_optional(found->second)});
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    if (buffer.value().defined()) {
      all.push_back({join_names(prefix, buffer.key()), buffer.value(), false, std::nullopt});
    }
  }
  // Not walk_modules(): a module that is registered twice has both names.
  for (const auto& child : module.named_children()) {
    add_named(*child.value(), join_names(prefix, child.key()), sharded, all);
  }
}

}  // namespace

std::vector<NamedTensor> named_tensors(const ModuleState& root) {
  ShardedByKey sharded;
  for (ParamRef& param : params_below(root)) {
    const c10::TensorImpl* key = param.group->key(param.index);
    sharded.emplace(key, std::move(param));
  }
  for (const std::shared_ptr<ModuleState>& unit : units_below(root.modules())) {
    unit->restore_buffers();
  }
  std::vector<NamedTensor> all;
  add_named(*root.module(), "", sharded, all);
  return all;
}

at::ScalarType NamedTensor::dtype() const {
  return sharded ? sharded->group->store().dtype() : tensor.scalar_type();
}

StateValue view_of(const NamedTensor& named) {
  if (!named.sharded) {
    return named.tensor.detach();
  }
  ShardStore& store = named.sharded->group->store();
  LocalShard part = store.part_of(store.handed_out(), named.sharded->index);
  part.fqn = named.name;
  return part;
}

}  // namespace fsdp
