#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fsdp {

/// Records that a unit owns `parameter`, with its name in that unit. Process-wide, guarded by a
/// mutex; entries of dead parameters are removed.
void claim(const at::Tensor& parameter, const std::string& fqn);

/// Changes the name of a live, claimed parameter.
void rename_claim(const c10::TensorImpl* parameter, const std::string& fqn);

/// The name of `parameter` in the unit that owns it; empty if there is none.
std::string claimed_as(const at::Tensor& parameter);

}  // namespace fsdp
