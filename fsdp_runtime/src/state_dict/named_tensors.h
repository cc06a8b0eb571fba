#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/state_dict.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/module_walk.h"

namespace fsdp {

/// A tensor of a model under one of its names.
struct NamedTensor {
  std::string name;
  /// The module's own. That of a sharded parameter has its shape, but no data, and the dtype in
  /// which it computes.
  at::Tensor tensor;
  bool is_parameter = false;
  std::optional<ParamRef> sharded;  // where its parts are; none: it is whole on each rank

  bool is_frozen() const { return is_parameter && !tensor.requires_grad(); }
  /// In which it is kept.
  at::ScalarType dtype() const;
};

/// All of a model in the order of Python's Module.state_dict(), under all names.
std::vector<NamedTensor> named_tensors(const ModuleState& root);

/// What this rank has of the tensor, under its name: views. That of the shard is as
/// FSDPModule::sharded_parameters() has it, to be written after prepare_to_write().
StateValue view_of(const NamedTensor& named);

}  // namespace fsdp
