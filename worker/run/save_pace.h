#pragma once

#include <chrono>
#include <optional>

namespace fsdprun::worker {

/// How much patience a save beside the training has earned. Time comes in as an argument. Pure.
class SavePace {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  /// A save is late after `late_min`, or after 10 periods, whichever is longer. `wait_max`: how
  /// long training waits for a save, in all, so that the next can begin.
  explicit SavePace(Duration late_min = std::chrono::seconds(60),
                    Duration wait_max = std::chrono::seconds(60))
      : late_min_(late_min), wait_max_(wait_max) {}

  /// A save begins. What lies between the beginnings of this one and the last is the period.
  void Begin(Time now);
  /// Training waits for the save from now on; until when. It waits once: if that was in vain, the
  /// save may never end.
  Time WaitUntil(Time now);
  /// True once for each save, when it is late.
  bool MustTell(Time now);

  Duration Taken(Time now) const { return now - *began_at_; }

 private:
  Duration late_min_;
  Duration wait_max_;
  std::optional<Time> began_at_;
  Time late_at_{};
  std::optional<Time> wait_until_;
  bool has_told_ = false;
};

}  // namespace fsdprun::worker
