#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdprun::worker::fused {

// The same functions as those of the reference models, in one pass over memory each and with their
// own gradients, which have none themselves. float32 on the CPU; on CUDA ATen's or our own kernels
// (cuda/); other dtypes and devices are computed as the reference does. What is rounded between
// steps there is not here, so that results differ in the last bits.
// Threads: as ATen's operations, in parallel over rows.

/// RmsNorm. x: [..., n], weight: [n] -> [..., n] in x's dtype.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Rotary positions. x: [batch, length, heads, dim], as projections leave it; cos, sin: [1, length,
/// dim] in x's dtype, whose halves are equal -> contiguous, x's shape.
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up, of one shape and dtype.
at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Mean cross entropy of hidden W^T in float32, without the logits of all tokens at once: those of
/// a chunk of tokens exist at a time, and their gradients are computed with them. hidden: [..., n],
/// weight: [vocab_size, n] in one dtype; targets: int64 [...], kIgnored for those that do not count
/// -> float32 []. NaN if none counts. Memory: the gradients of `hidden` and `weight` from the
/// forward on, and about 32 MiB of logits.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets);

/// As PyTorch's ignore_index.
inline constexpr int64_t kIgnored = -100;

}  // namespace fsdprun::worker::fused
