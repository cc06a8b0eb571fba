#pragma once

#include <c10/core/Device.h>
#include <fsdp/grad_scaler.h>

#include <memory>
#include <vector>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/optim/gradient_lists.h"
#include "fsdp_runtime/src/optim/overflow.h"

namespace fsdp {

/// What is unscaled together: the gradients of an optimizer or a module.
struct GradScaler::Target {
  GradientsByType gradients = {};  // as many on all ranks, empty ones included
  c10::Device device = c10::kCPU;  // of them
  std::vector<std::shared_ptr<ParamGroup>> groups = {};   // that they are of, each once
  std::vector<std::shared_ptr<ParamGroup>> largest = {};  // of each model: that on most ranks

  /// How many of its groups are among `others`.
  size_t count_in(const std::vector<std::shared_ptr<ParamGroup>>& others) const;
  void add_group(const std::shared_ptr<ParamGroup>& group);
  /// Of a tensor that is nobody's, or a leaf's.
  void add_gradient(at::Tensor gradient);
};

}  // namespace fsdp
