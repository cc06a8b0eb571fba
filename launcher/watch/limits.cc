#include "launcher/watch/limits.h"

#include <algorithm>
#include <cmath>

namespace fsdprun::watch {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

struct Bounds {
  Duration floor;
  Duration ceiling;
};

Bounds BoundsOf(Span span) {
  switch (span) {
    case Span::kWarmUp:
      return {seconds(60), hours(4)};
    case Span::kStep:
      return {kStepFloor, minutes(30)};
    case Span::kData:
    case Span::kOther:
      return {seconds(60), hours(1)};
    case Span::kEvaluating:
    case Span::kSaving:
    case Span::kLoading:
      return {minutes(10), hours(4)};
    case Span::kReports:
      return {minutes(2), hours(4)};
    case Span::kIdle:
      return {minutes(10), hours(4)};
  }
  return {hours(4), hours(4)};
}

}  // namespace

void Limits::Learn(Span span, Duration stood, MonoTime now) {
  const Duration counts = std::min(stood, BoundsOf(span).ceiling / kFactor);
  if (counts > Longest(span, now)) {
    learnt_[static_cast<size_t>(span)] = {counts, now};
  }
}

Duration Limits::Longest(Span span, MonoTime now) const {
  const Learnt& learnt = learnt_[static_cast<size_t>(span)];
  if (learnt.longest == Duration{}) {
    return {};
  }
  const Duration half_life =
      std::clamp<Duration>(kHalfLives * learnt.longest, kHalfLife, kHalfLifeMax);
  const double half_lives = ToSeconds(now - learnt.at) / ToSeconds(half_life);
  return Duration(static_cast<int64_t>(static_cast<double>(learnt.longest.count()) *
                                       std::exp2(-std::max(0.0, half_lives))));
}

Duration Limits::LimitOf(Span span, bool is_busy, MonoTime now) const {
  if (options_.fixed.has_value()) {
    return AtLeast(*options_.fixed);
  }
  const Duration longest = Longest(span, now);
  if (span == Span::kWarmUp && longest == Duration{}) {
    return AtLeast(options_.warm_up);
  }
  const Bounds bounds = BoundsOf(span);
  const Duration learnt = std::clamp(kFactor * longest, bounds.floor, bounds.ceiling);
  return AtLeast(is_busy ? std::max(learnt, kBusyFloor) : learnt);
}

Duration Limits::StartLimit(MonoTime now) const {
  const Duration limit = LimitOf(Span::kWarmUp, /*is_busy=*/false, now);
  return options_.fixed.has_value() ? limit : std::max(limit, options_.warm_up);
}

Duration Limits::StoppedLimit() const { return AtLeast(options_.fixed.value_or(kStoppedLimit)); }

Duration Limits::TracedLimit() const { return AtLeast(options_.fixed.value_or(kTracedLimit)); }

Duration Limits::AsleepLimit() const { return AtLeast(options_.fixed.value_or(kAsleepLimit)); }

Duration Limits::ActAfter(Duration limit) const {
  if (options_.fixed.has_value()) {
    return limit;
  }
  return std::max(kActFloor, limit + std::min<Duration>((kActFactor - 1) * limit, kActMore));
}

bool Limits::IsKnown(Span span, MonoTime now) const {
  return options_.fixed.has_value() || kFactor * Longest(span, now) > BoundsOf(span).floor;
}

Span SpanOf(Activity activity, bool is_warm) {
  switch (activity) {
    case Activity::kEvaluating:
      return Span::kEvaluating;
    case Activity::kSaving:
      return Span::kSaving;
    case Activity::kLoading:
      return Span::kLoading;
    case Activity::kStarting:
      return Span::kWarmUp;
    case Activity::kWaitingForData:
      return is_warm ? Span::kData : Span::kWarmUp;
    case Activity::kOther:
      return is_warm ? Span::kOther : Span::kWarmUp;
    case Activity::kForward:
    case Activity::kBackward:
    case Activity::kOptimizer:
    case Activity::kCollective:
      return is_warm ? Span::kStep : Span::kWarmUp;
  }
  return Span::kOther;
}

bool IsLong(Activity activity) {
  switch (activity) {
    case Activity::kStarting:
    case Activity::kWaitingForData:
    case Activity::kEvaluating:
    case Activity::kSaving:
    case Activity::kLoading:
      return true;
    case Activity::kOther:
    case Activity::kForward:
    case Activity::kBackward:
    case Activity::kOptimizer:
    case Activity::kCollective:
      return false;
  }
  return false;
}

}  // namespace fsdprun::watch
