#pragma once

#include <chrono>

#include "base/mono_time.h"

namespace fsdprun {

/// How often an agent that loses one coordinator after the other is started again. Pure.
class RestartLimit {
 public:
  static constexpr int kMaxInARow = 10;
  /// An agent that ran for so long begins a new row.
  static constexpr Duration kLongRun = std::chrono::minutes(1);

  explicit RestartLimit(MonoTime started_at) : started_at_(started_at) {}

  /// The agent has ended; false if it must not be started again.
  bool Take(MonoTime now) {
    in_a_row_ = now - started_at_ >= kLongRun ? 1 : in_a_row_ + 1;
    started_at_ = now;
    return in_a_row_ <= kMaxInARow;
  }

 private:
  MonoTime started_at_;
  int in_a_row_ = 0;
};

}  // namespace fsdprun
