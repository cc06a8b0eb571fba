#include "worker/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdprun::worker {

double Schedule::Factor(int64_t step) const {
  if (step < warmup_steps) {
    return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (kind == ScheduleKind::kConstant) {
    return 1.0;
  }
  const double length = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / length);
  if (kind == ScheduleKind::kLinear) {
    return 1.0 - (1.0 - min_lr_ratio) * progress;
  }
  return min_lr_ratio + (1.0 - min_lr_ratio) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace fsdprun::worker
