#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/offload_activations.h>

#include "fsdp_runtime/src/activation/saved_tensor_hooks.h"

namespace fsdp::detail {

/// What OffloadActivations gives autograd for a saved tensor: a copy on the CPU, unless
/// `is_on_host`, or the tensor is a leaf, small or not strided.
FSDP_API SavedTensorScope::Hooks saved_on_cpu(const OffloadActivations::Options& options,
                                              bool (*is_on_host)(const at::Tensor& tensor));

}  // namespace fsdp::detail
