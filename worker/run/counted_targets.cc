#include "worker/run/counted_targets.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace fsdprun::worker {

double CountedTargets::Weigh(const Batch& batch) {
  if (!may_ignore_targets_) {
    return 1;
  }
  const int64_t all = batch.targets.numel();
  counted_ += batch.counted;
  all_ += all;
  return static_cast<double>(batch.counted) / static_cast<double>(all);
}

double CountedTargets::share() const {
  return all_ == 0 ? 1.0 : static_cast<double>(counted_) / static_cast<double>(all_);
}

void DivideGradients(const fsdp::FSDPModule& root, const at::Tensor& share) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = at::where(share > 0, 1 / share, at::ones_like(share));
  for (const fsdp::LocalShard& gradient : root.sharded_gradients()) {
    if (gradient.local.defined()) {
      gradient.local.mul_(factor.to(gradient.local.device()));
    }
  }
}

}  // namespace fsdprun::worker
