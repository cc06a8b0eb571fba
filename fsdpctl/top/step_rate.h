#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/mono_time.h"

namespace fsdprun::top {

/// How fast a job gets on, by the steps that are seen of it.
class StepRate {
 public:
  /// Older steps count only if there are fewer than two newer ones.
  static constexpr Duration kWindow = std::chrono::minutes(2);

  /// The step that was reached at `at`, in this generation; -1: none is known.
  void See(uint64_t generation, int64_t step, MonoTime at);
  /// Absent until two steps of a generation have been seen. Where the next one is overdue, no more
  /// than if it came now.
  std::optional<double> PerSecond(MonoTime now) const;

 private:
  struct Seen {
    MonoTime at{};
    int64_t step = 0;
  };

  uint64_t generation_ = 0;
  std::deque<Seen> seen_;
};

}  // namespace fsdprun::top
