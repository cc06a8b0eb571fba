#pragma once

#include <ATen/core/Tensor.h>

#include "worker/models/fused/loss_chunks.h"

namespace fsdprun::worker::fused {

/// See ops.h.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets, const CrossEntropyChunks& chunks);

}  // namespace fsdprun::worker::fused
