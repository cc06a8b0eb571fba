#pragma once

#include <ATen/core/Tensor.h>

#include "worker/models/fused/cuda/device_kernels.h"

namespace fsdprun::worker::fused {

// Loops of row_kernels.h as kernels of a device, of float32 and bfloat16, computed in float32.
// All tensors are on one device, in one dtype where nothing else is said, contiguous but for Rope's
// x, and not empty. Results are written when the current stream gets there; memory is LibTorch's.
// Threads: any. Errors: KernelError; c10::Error before a launch, of tensors on several devices, or
// not as long as they are to be.

/// Whether RopeOnDevice() can have them: see Rope() of ops.h for the shapes.
bool FitsRopeOnDevice(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// x: [batch, length, heads, dim], the numbers of a head side by side; cos, sin: [1, length, dim]
/// -> contiguous. `sign`: 1, or -1 to turn back.
at::Tensor RopeOnDevice(const KernelLauncher& device, const at::Tensor& x, const at::Tensor& cos,
                        const at::Tensor& sin, float sign);

at::Tensor SwigluOnDevice(const KernelLauncher& device, const at::Tensor& gate,
                          const at::Tensor& up);

/// Writes dgate and dup.
void SwigluBackwardOnDevice(const KernelLauncher& device, const at::Tensor& dy,
                            const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dgate,
                            const at::Tensor& dup);

/// logits: [rows, vocab_size], which becomes the gradient of the sum of cross entropies over
/// `count`, float32 []; targets: int64 [rows] -> cross entropies, float32 [rows], 0 where the
/// target is kIgnored. A target beyond the vocabulary is a device-side assertion.
at::Tensor CrossEntropyOnDevice(const KernelLauncher& device, const at::Tensor& logits,
                                const at::Tensor& targets, const at::Tensor& count);

}  // namespace fsdprun::worker::fused
