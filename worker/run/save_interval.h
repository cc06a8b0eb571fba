#pragma once

#include <chrono>
#include <optional>

namespace fsdprun::worker {

/// Says when a checkpoint is due by time (checkpoint.every_minutes). Time comes in as an argument.
/// Pure. The ranks' clocks differ, so that of one rank decides, and the others are told.
class SaveInterval {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// 0: never.
  explicit SaveInterval(double minutes) : minutes_(minutes) {}

  /// The training, or a save, begins; it does not matter how the save ends.
  void Begin(Time now) { began_at_ = now; }
  bool IsDue(Time now) const {
    using Minutes = std::chrono::duration<double, std::ratio<60>>;
    return minutes_ > 0 && began_at_ && Minutes(now - *began_at_).count() >= minutes_;
  }

 private:
  double minutes_;
  std::optional<Time> began_at_;
};

}  // namespace fsdprun::worker
