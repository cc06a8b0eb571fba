#pragma once

#include <cstdint>

#include "worker/config/config.h"

namespace fsdprun::worker {

/// One forward and backward of a rank.
struct MicroBatch {
  /// How many it reads, at least 1.
  int64_t samples = 0;
  /// What its mean loss is divided by, so that the mean over the ranks of the sums over their micro
  /// batches is the mean over the samples of the step; 0: it does not count, and its gradients are
  /// zeros.
  double divisor = 0;
};

// Note [A batch for any number of ranks]
// With train.global_batch_size G a step takes the next G samples of the order, whatever the number
// of ranks R: rank r takes samples r, r + R, r + 2R and so on of them. If R does not divide G, some
// ranks take one more than the others, and each sample counts as much all the same. As all ranks
// do the same number of forwards, one that has too few samples does one with a sample that does not
// count. Only an order without rounds of R samples (data.sampler = "global") can be cut at any
// place. So losses at another number of ranks differ by the rounding of sums alone.

/// What a step takes, on one rank.
struct StepPlan {
  /// How many, on all ranks alike.
  int64_t forwards = 0;
  /// Of a forward, at most; and this rank's of all forwards.
  int64_t micro_batch_size = 0;
  int64_t own_samples = 0;
  int64_t ranks = 1;
  /// Of all ranks together.
  int64_t samples = 0;
  /// This rank's samples as a part of the mean over the ranks.
  double own_weight = 1;
  /// All ranks take equally many.
  bool is_even = true;

  /// Of forward `index`, from 0.
  MicroBatch At(int64_t index) const;
  /// Whether all forwards of all ranks take equally many.
  bool is_uniform() const { return is_even && own_samples == forwards * micro_batch_size; }
  /// The most that a forward of any rank takes: fewer than micro_batch_size if a step has not as
  /// many for each.
  int64_t largest_forward() const;
};

/// Samples of a step of all ranks.
int64_t StepSamples(const TrainConfig::Train& train, int64_t ranks);

/// Pure. Errors: ConfigError if the ranks cannot share train.global_batch_size.
StepPlan PlanStep(const TrainConfig& config, int64_t rank, int64_t ranks);

}  // namespace fsdprun::worker
