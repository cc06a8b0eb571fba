#pragma once

#include <algorithm>
#include <chrono>

#include "base/mono_time.h"

namespace fsdprun {

/// When a standby that was lost is replaced: soon, and later each time that one does not live long,
/// because a machine that is short of something (processes, descriptors, memory) is not helped by
/// attempts. It is never given up. A pure function of what has happened.
class RestartPause {
 public:
  static constexpr Duration kFirst = std::chrono::milliseconds(100);
  static constexpr Duration kLongest = std::chrono::minutes(1);
  static constexpr Duration kLongLife = std::chrono::minutes(1);

  struct Next {
    Duration pause{};
    /// It is the first loss in a row; then, that none has lived for minutes.
    bool is_first = false;
    bool is_persistent = false;
  };
  /// One is lost that has lived for so long; zero if it could not even be started.
  Next Lost(Duration lived) {
    const bool is_first = pause_ == Duration{} || lived >= kLongLife;
    const Duration before = is_first ? Duration{} : pause_;
    pause_ = is_first ? kFirst : std::min(2 * pause_, kLongest);
    return {pause_, is_first, pause_ == kLongest && before != kLongest};
  }

 private:
  /// Zero before the first loss.
  Duration pause_{};
};

}  // namespace fsdprun
