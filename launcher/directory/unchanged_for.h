#pragma once

#include <algorithm>
#include <string>

#include "base/mono_time.h"

namespace fsdprun {

/// How long something has been seen without a change, in time that the observer itself has run:
/// what comes after a stall of its own counts as one `longest_step`, because whatever should have
/// changed may be about to change too. Pure.
class UnchangedFor {
 public:
  explicit UnchangedFor(Duration longest_step) : longest_step_(longest_step) {}

  /// Two sights with the same `sign` are of one thing that has not changed between them.
  Duration See(const std::string& sign, MonoTime now) {
    if (sign != sign_) {
      sign_ = sign;
      age_ = {};
    } else {
      age_ += std::clamp<Duration>(now - seen_at_, Duration::zero(), longest_step_);
    }
    seen_at_ = now;
    return age_;
  }

 private:
  const Duration longest_step_;
  std::string sign_;
  MonoTime seen_at_{};
  Duration age_{};
};

}  // namespace fsdprun
