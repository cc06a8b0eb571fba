#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "worker/models/fused/row_kernels.h"

namespace fsdprun::worker::fused {

/// Whether the loops of row_kernels.h are for it.
inline bool HasRowKernels(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.numel() > 0;
}

/// Of all axes but the last one.
inline int64_t RowsOf(const at::Tensor& tensor) { return tensor.numel() / tensor.size(-1); }

/// Rows that are worth a thread.
inline int64_t GrainFor(const at::Tensor& tensor) {
  constexpr int64_t kNumbers = 16384;
  return std::max<int64_t>(1, kNumbers / tensor.size(-1));
}

}  // namespace fsdprun::worker::fused
