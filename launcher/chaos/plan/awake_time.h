#pragma once

#include <optional>
#include <vector>

#include "base/mono_time.h"

namespace fsdprun::chaos {

/// Time without what this program has slept through: stopped by a signal, with its container, or by
/// a debugger. Nobody has looked at the job meanwhile, so nothing that takes too long is to be held
/// against it. Pure: it is told what time it is, and how often that is tells of sleep.
class AwakeTime {
 public:
  /// It is told the time at least that often while it is awake.
  static constexpr Duration kLongestStep = std::chrono::seconds(1);

  /// It is `now`, on the monotonic clock. Returns for how long it has slept since it was told last.
  Duration Advance(MonoTime now);
  /// What the time was, without sleep, at a moment of the monotonic clock. One that it has slept
  /// through is the time when it fell asleep.
  MonoTime At(MonoTime moment) const;

 private:
  struct Sleep {
    MonoTime from;
    MonoTime until;
  };

  std::optional<MonoTime> told_;
  std::vector<Sleep> sleeps_;
};

}  // namespace fsdprun::chaos
