#pragma once

/// @file
/// A linear layer whose weight gradient is not copied.

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>

namespace fsdp {

/// @addtogroup train
/// @{

/// at::linear(input, weight, bias), with the same bits in forward and backward. If `weight` is a
/// parameter of a sharded unit on the CPU, its first gradient of a step is computed in the memory
/// from which it will be reduced, where at::linear's is copied there; if it has the dtype of the
/// reduction, and the backward passes through the unit once.
///
/// Shapes: `input` [..., in], `weight` [out, in], `bias` [out] or undefined; returns [..., out].
/// dtypes and devices: as at::linear takes them. With a weight that the forward uses elsewhere too
/// (a tied head) nothing is saved: autograd adds its gradients up in memory of its own. Works on
/// weights that are not sharded as well. Errors: those of at::linear.
FSDP_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias = {});

/// @}

}  // namespace fsdp
