#pragma once

#include <cstdint>

namespace fsdprun::worker {

/// kWsd: warm-up, stable, decay.
enum class ScheduleKind { kConstant, kLinear, kCosine, kWsd };

enum class DecayShape { kLinear, kCosine, kOneMinusSqrt };

/// Learning rate schedule, a pure function of the step.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  /// Final rate of all but kConstant, as a fraction of the peak.
  double min_lr_ratio = 0;
  /// Steps of the whole run, warm-up included.
  int64_t total_steps = 0;
  // Of kWsd.
  int64_t decay_steps = 0;
  DecayShape decay_shape = DecayShape::kLinear;

  /// Factor on the peak rate at 0-based `step`:
  ///   step < warmup:  (step + 1) / warmup
  ///   constant:       1
  ///   else, with p = min(1, (step - warmup) / (total - warmup)):
  ///   linear:         1 - (1 - min) * p
  ///   cosine:         min + (1 - min) * (1 + cos(pi * p)) / 2
  ///   wsd:            1 until step total - decay, then with p = min(1, (step - (total - decay)) /
  ///                   decay) these two, or
  ///   1-sqrt:         min + (1 - min) * (1 - sqrt(p))
  /// Until its decay begins, wsd does not depend on `total_steps`, so a run may go on with others.
  double Factor(int64_t step) const;
};

/// Of a run of `total_steps`, of which `fraction` is decay.
int64_t DecaySteps(int64_t total_steps, double fraction);

}  // namespace fsdprun::worker
