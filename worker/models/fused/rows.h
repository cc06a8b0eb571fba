#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

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

/// Numbers that are worth a thread.
inline constexpr int64_t kGrain = 16384;

/// The same in rows.
inline int64_t GrainFor(const at::Tensor& tensor) {
  return std::max<int64_t>(1, kGrain / tensor.size(-1));
}

/// First in each backward: with grad mode, as by create_graph, its results would be differentiated,
/// and they have no graph.
inline void RefuseSecondDerivative(const char* operation) {
  TORCH_CHECK(!at::GradMode::is_enabled(), operation,
              " of model.kernels=fused: a backward with create_graph needs its second derivative, "
              "which it does not have; use model.kernels=reference");
}

}  // namespace fsdprun::worker::fused
