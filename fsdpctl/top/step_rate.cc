#include "fsdpctl/top/step_rate.h"

namespace fsdprun::top {

void StepRate::See(uint64_t generation, int64_t step, MonoTime at) {
  const bool goes_back = step >= 0 && !seen_.empty() && step < seen_.back().step;
  if (generation != generation_ || goes_back) {
    generation_ = generation;
    seen_.clear();
  }
  if (step < 0 || (!seen_.empty() && step == seen_.back().step)) {
    return;
  }
  seen_.push_back({at, step});
  while (seen_.size() > 2 && at - seen_.front().at > kWindow) {
    seen_.pop_front();
  }
}

std::optional<double> StepRate::PerSecond(MonoTime now) const {
  if (seen_.size() < 2 || seen_.back().at <= seen_.front().at) {
    return std::nullopt;
  }
  const std::chrono::duration<double> time = seen_.back().at - seen_.front().at;
  const auto steps = static_cast<double>(seen_.back().step - seen_.front().step);
  // Not each step need be told of.
  const double at_once = steps / static_cast<double>(seen_.size() - 1);
  const std::chrono::duration<double> since = now - seen_.back().at;
  const double rate = steps / time.count();
  return since.count() * rate > at_once ? at_once / since.count() : rate;
}

}  // namespace fsdprun::top
