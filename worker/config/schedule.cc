#include "worker/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdprun::worker {
namespace {

/// From 1 down to `min_lr_ratio` while `progress` goes from 0 to 1.
double Decay(DecayShape shape, double progress, double min_lr_ratio) {
  const double range = 1.0 - min_lr_ratio;
  switch (shape) {
    case DecayShape::kLinear:
      return 1.0 - range * progress;
    case DecayShape::kCosine:
      return min_lr_ratio + range * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case DecayShape::kOneMinusSqrt:
      return min_lr_ratio + range * (1.0 - std::sqrt(progress));
  }
  return 1.0;
}

}  // namespace

double Schedule::Factor(int64_t step) const {
  if (step < warmup_steps) {
    return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (kind == ScheduleKind::kConstant) {
    return 1.0;
  }
  const bool is_wsd = kind == ScheduleKind::kWsd;
  const int64_t begin = is_wsd ? total_steps - decay_steps : warmup_steps;
  if (step < begin) {
    return 1.0;
  }
  const double length = static_cast<double>(std::max<int64_t>(1, total_steps - begin));
  const double progress = std::min(1.0, static_cast<double>(step - begin) / length);
  if (is_wsd) {
    return Decay(decay_shape, progress, min_lr_ratio);
  }
  return Decay(kind == ScheduleKind::kLinear ? DecayShape::kLinear : DecayShape::kCosine, progress,
               min_lr_ratio);
}

int64_t DecaySteps(int64_t total_steps, double fraction) {
  return std::llround(static_cast<double>(total_steps) * fraction);
}

}  // namespace fsdprun::worker
