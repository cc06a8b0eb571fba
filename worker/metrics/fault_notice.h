#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace fsdprun::worker {

/// Says when a fault that recurs is told again: at once, then at most once a minute, with how often
/// it has come in between. Pure: the time comes in.
class FaultNotice {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The line to tell, if it is time.
  std::optional<std::string> Tell(const std::string& text, Time now);

 private:
  std::optional<Time> told_;
  int64_t untold_ = 0;
};

}  // namespace fsdprun::worker
