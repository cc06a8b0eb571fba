#include "launcher/chaos/plan/awake_time.h"

#include <algorithm>
#include <utility>

namespace fsdprun::chaos {

Duration AwakeTime::Advance(MonoTime now) {
  const MonoTime last = std::exchange(told_, now).value_or(now);
  if (now - last <= kLongestStep) {
    return Duration::zero();
  }
  sleeps_.push_back({.from = last + kLongestStep, .until = now});
  return now - sleeps_.back().from;
}

MonoTime AwakeTime::At(MonoTime moment) const {
  Duration slept{};
  for (const Sleep& sleep : sleeps_) {
    slept += std::max(std::min(moment, sleep.until) - sleep.from, Duration::zero());
  }
  return moment - slept;
}

}  // namespace fsdprun::chaos
