#pragma once

#include <chrono>

namespace fsdprun {

/// A point on one machine's monotonic clock. Never put on the wire and never compared across hosts.
using MonoTime = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

inline MonoTime MonoNow() {
  return std::chrono::time_point_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now());
}

inline double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace fsdprun
