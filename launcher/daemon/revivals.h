#pragma once

#include "base/mono_time.h"

namespace fsdprun {

/// How often a session's process is started again: not for ever, if it dies as soon as it runs.
/// Pure: time comes in as an argument.
class Revivals {
 public:
  /// A process that ran for longer was healthy.
  static constexpr Duration kHealthyAfter = std::chrono::seconds(1);
  static constexpr int kMostInARow = 100;

  /// Its process has ended. False: it is not to be started again.
  bool Take(MonoTime now) {
    in_a_row_ = now - started_at_ >= kHealthyAfter ? 1 : in_a_row_ + 1;
    started_at_ = now;
    return in_a_row_ <= kMostInARow;
  }

 private:
  int in_a_row_ = 0;
  MonoTime started_at_{};
};

}  // namespace fsdprun
