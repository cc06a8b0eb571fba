#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstdint>

#include "worker/run/batches.h"

namespace fsdprun::worker {

// Note [Targets that do not count]
// Where some targets do not count, micro batches and ranks have different numbers of those that do,
// and a mean of their means would give a token in a short document more weight than one in a long
// one. So each loss is the sum over its targets that count, divided by the number of all: that is
// the same for each, and a mean over micro batches and ranks is right but for one factor, the share
// of the targets that count in the whole step. It is known after the last micro batch, and the
// gradients are divided by it before they are clipped.

/// How much the losses of a step weigh, by how many of their targets count. Thread: one.
class CountedTargets {
 public:
  /// Without targets that may not count, all weigh 1.
  explicit CountedTargets(bool may_ignore_targets) : may_ignore_targets_(may_ignore_targets) {}

  bool may_ignore_targets() const { return may_ignore_targets_; }
  void BeginStep() { counted_ = all_ = 0; }
  /// What the mean loss over the targets of `batch` that count is to be multiplied by, so that it
  /// is their sum divided by the number of all.
  double Weigh(const Batch& batch);
  /// How many of this rank's targets have counted since BeginStep, from 0 to 1.
  double share() const;

 private:
  bool may_ignore_targets_;
  int64_t counted_ = 0;
  int64_t all_ = 0;
};

/// Divides all gradients under `root` by `share`: 0-dim float, the mean over the ranks; where it is
/// 0, no target has counted, and they stay 0. Waits for reductions in flight; CUDA: on the current
/// stream, without a wait of the host.
void DivideGradients(const fsdp::FSDPModule& root, const at::Tensor& share);

}  // namespace fsdprun::worker
