#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/optim.h>

#include <cstdint>
#include <vector>

namespace fsdp {

/// Elements [begin, end) of a flat shard, all with or all without weight decay.
struct DecaySegment {
  int64_t begin = 0;
  int64_t end = 0;
  bool decays = true;
};

/// The scalars of one update, computed in double as Python computes them.
struct AdamWStep {
  double decay_factor = 1;  // 1 - lr * weight_decay
  double weight_decay = 0;
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double step_size = 0;              // lr / (1 - beta1^t)
  double bias_correction2_sqrt = 0;  // sqrt(1 - beta2^t)
  int64_t t = 0;
};

AdamWStep make_adamw_step(const AdamWOptions& options, int64_t t);

/// Flat, contiguous, of equal length.
struct AdamWTensors {
  at::Tensor param;
  at::Tensor gradient;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

/// One update of the segments. CPU: the ATen kernels of torch.optim.AdamW's default path in the
/// same order, on cache-sized pieces; results do not depend on the piece boundaries. CUDA: one
/// fused kernel per segment.
void apply_adamw(const AdamWTensors& tensors, const std::vector<DecaySegment>& segments,
                 const AdamWStep& step);

}  // namespace fsdp
