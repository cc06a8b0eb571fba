#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

namespace torch::nn {
class Module;
}

namespace fsdp {

/// Who owns a parameter.
struct Claim {
  std::string fqn;  // below the root of the unit
  std::weak_ptr<torch::nn::Module> unit;
};

/// Records that a unit owns `parameter`. Process-wide, guarded by a mutex; entries of dead
/// parameters are removed.
void claim(const at::Tensor& parameter, Claim claim);

/// Changes the name of a live, claimed parameter.
void rename_claim(const c10::TensorImpl* parameter, const std::string& fqn);

std::optional<Claim> claim_of(const at::Tensor& parameter);

}  // namespace fsdp
