#include "fsdpctl/top/step_rate.h"

namespace fsdprun::top {

void StepRate::See(uint64_t generation, int64_t step, MonoTime now) {
  const bool goes_back = step >= 0 && !seen_.empty() && step < seen_.back().step;
  if (generation != generation_ || goes_back) {
    generation_ = generation;
    seen_.clear();
  }
  if (step < 0 || (!seen_.empty() && step == seen_.back().step)) {
    return;
  }
  seen_.push_back({now, step});
  while (seen_.size() > 2 && now - seen_.front().at > kWindow) {
    seen_.pop_front();
  }
}

std::optional<double> StepRate::per_second() const {
  if (seen_.size() < 2 || seen_.back().at <= seen_.front().at) {
    return std::nullopt;
  }
  const std::chrono::duration<double> time = seen_.back().at - seen_.front().at;
  return static_cast<double>(seen_.back().step - seen_.front().step) / time.count();
}

}  // namespace fsdprun::top
