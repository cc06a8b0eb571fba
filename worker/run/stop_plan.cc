#include "worker/run/stop_plan.h"

#include <algorithm>

namespace fsdprun::worker {
namespace {

// For what follows a checkpoint: the last messages and the exit.
constexpr StopPlan::Duration kMargin = std::chrono::seconds(1);
constexpr StopPlan::Duration kStepTimeoutMin = std::chrono::seconds(2);
constexpr int kTimeoutInSteps = 4;

StopPlan::Time Deadline(StopPlan::Time at, StopPlan::Duration grace) {
  return at + grace - std::min(kMargin, grace / 10);
}

}  // namespace

void StopPlan::Request(Time at) {
  if (!requested_at_) {
    requested_at_ = at;
    deadline_ = Deadline(at, kUnknownGrace);
  }
}

void StopPlan::Request(Time at, Duration grace) {
  if (grace_ == grace) {
    return;
  }
  // A signal may have come just before its grace was read.
  const Time deadline = Deadline(grace_ ? at : requested_at_.value_or(at), grace);
  deadline_ = grace_ ? std::min(*deadline_, deadline) : deadline;
  grace_ = grace;
  requested_at_ = requested_at_.value_or(at);
}

bool StopPlan::CanFinishStep(Time now, Duration rest) const {
  const Duration saves = is_saving_ ? 2 * save_time_ : save_time_;
  return !deadline_ || now + rest + saves <= *deadline_;
}

bool StopPlan::MustGiveUpSave(Time now) const { return grace_ && now >= *deadline_; }

std::chrono::milliseconds StopPlan::step_timeout() const {
  const Duration timeout = step_time_
                               ? std::max<Duration>(kStepTimeoutMin, kTimeoutInSteps * *step_time_)
                               : kUnknownStep;
  return std::chrono::ceil<std::chrono::milliseconds>(timeout);
}

}  // namespace fsdprun::worker
