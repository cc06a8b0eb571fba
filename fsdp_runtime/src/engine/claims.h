#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fsdp {

/// Remembers that a unit has `parameter`, under the name the unit knows it by. Process-wide,
/// guarded by a mutex; forgets parameters that have died.
void claim(const at::Tensor& parameter, const std::string& fqn);

/// Changes the name of a live, claimed parameter.
void rename_claim(const c10::TensorImpl* parameter, const std::string& fqn);

/// The name under which a unit has `parameter`; empty when none has.
std::string claimed_as(const at::Tensor& parameter);

}  // namespace fsdp
