#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdprun::worker::fused {

// The functions of the reference models in fewer passes over memory, and with gradients of their
// own, which cannot be differentiated again. float32 on the CPU: the loops of row_kernels.h.
// float32 and bfloat16 on CUDA: the kernels of cuda/, but for RmsNorm, where the machine has NVRTC,
// which compiles them when they are first used; a CUDA graph is captured after that. Elsewhere:
// ATen's operations, for LinearCrossEntropy in chunks as well. Results are not the reference's
// bits: less is rounded between steps, and sums have another order. In float32 that is about 1e-6
// of the largest number of a result or gradient, in bfloat16 one rounding, 4e-3. Threads: as ATen's
// operations, in parallel over rows.

/// RmsNorm. x: [..., n], weight: [n] -> [..., n] in x's dtype, to which it is rounded once, at the
/// end. On devices it is at::rms_norm, which has the second derivative too: on CUDA that is ATen's
/// fused kernel in each direction, of a contiguous x in the weight's dtype, so we have none.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Rotary positions. x: [batch, length, heads, dim], as projections leave it; cos, sin: [1, length,
/// dim] in x's dtype, whose halves are equal -> contiguous, x's shape.
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up, of one shape and dtype.
at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Mean cross entropy of hidden W^T in float32, without the logits of all tokens at once: those of
/// a chunk of tokens exist at a time, and their gradients are computed with them. hidden: [..., n],
/// weight: [vocab_size, n] in one dtype; targets: int64 [...], kIgnored for those that do not count
/// -> float32 []. NaN if none counts; the gradients are zeros then. Errors: c10::Error on a target
/// beyond the vocabulary (CUDA: an assertion of the device's). Memory: from the forward on, the
/// gradients of `hidden` and of `weight`, each in its dtype; in the forward, the logits of a chunk
/// (see ChunksFor: 32 MiB, and for V > 32768 words 1 KiB times V on the CPU, 8 KiB times V on a
/// device) and, in another dtype than float32, half as much again (with the kernels of CUDA: half
/// as much in all), and a gradient of `weight` in float32 where there is more than one chunk.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets);

/// As PyTorch's ignore_index.
inline constexpr int64_t kIgnored = -100;

}  // namespace fsdprun::worker::fused
