#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>

namespace fsdp {

/// at::linear(input, weight, bias), with the same bits in forward and backward. If `weight` is a
/// parameter of a sharded unit on the CPU, its first gradient of a step is computed in the memory
/// from which it will be reduced, where at::linear's is copied there; if it has the dtype of the
/// reduction, and the backward passes through the unit once.
///
/// input: [..., in], weight: [out, in], bias: as of at::linear, or undefined; -> [..., out]. With a
/// weight that the forward uses elsewhere too (a tied head) nothing is saved: autograd adds its
/// gradients up in memory of its own. Errors: those of at::linear.
FSDP_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias = {});

}  // namespace fsdp
