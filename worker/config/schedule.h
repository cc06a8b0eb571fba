#pragma once

#include <cstdint>

namespace fsdprun::worker {

enum class ScheduleKind { kConstant, kLinear, kCosine };

/// Learning rate schedule, a pure function of the step.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  /// Final rate of linear and cosine, as a fraction of the peak.
  double min_lr_ratio = 0;
  /// Steps of the whole run, warm-up included.
  int64_t total_steps = 0;

  /// Factor on the peak rate at 0-based `step`:
  ///   step < warmup:  (step + 1) / warmup
  ///   constant:       1
  ///   else, with p = min(1, (step - warmup) / (total - warmup)):
  ///   linear:         1 - (1 - min) * p
  ///   cosine:         min + (1 - min) * (1 + cos(pi * p)) / 2
  double Factor(int64_t step) const;
};

}  // namespace fsdprun::worker
