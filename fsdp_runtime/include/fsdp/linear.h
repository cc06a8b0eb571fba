#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>

namespace fsdp {

/// at::linear(input, weight, bias), with the same bits in forward and backward. If `weight` is a
/// parameter of a sharded unit, its gradient is computed in the memory from which it will be
/// reduced, where at::linear's is copied there: on the CPU, for a weight that is used once in a
/// backward, in the dtype of the reduction. In all other cases it is at::linear.
///
/// input: [..., in], weight: [out, in], bias: [out] or undefined; -> [..., out]. A weight that the
/// forward uses elsewhere too (a tied head) is better given to at::linear: autograd has to add its
/// gradients up in memory of its own. Errors: those of at::linear.
FSDP_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias = {});

}  // namespace fsdp
