#include "worker/run/save_pace.h"

#include <algorithm>
#include <utility>

namespace fsdprun::worker {
namespace {

constexpr int kPeriodsMax = 10;

}  // namespace

void SavePace::Begin(Time now) {
  const Duration period = began_at_ ? now - *began_at_ : Duration::zero();
  began_at_ = now;
  late_at_ = now + std::max<Duration>(late_min_, kPeriodsMax * period);
  wait_until_.reset();
  has_told_ = false;
}

SavePace::Time SavePace::WaitUntil(Time now) {
  wait_until_ = wait_until_.value_or(now + wait_max_);
  return *wait_until_;
}

bool SavePace::MustTell(Time now) {
  return began_at_ && now >= late_at_ && !std::exchange(has_told_, true);
}

}  // namespace fsdprun::worker
