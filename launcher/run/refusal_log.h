#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/mono_time.h"

namespace fsdprun {

/// Rate-limits log lines about refused connections: the first, then at most one per interval with
/// the number of suppressed ones, so that a port scanner or an agent with an old token cannot flood
/// the log. Pure: no clock.
class RefusalLog {
 public:
  static constexpr Duration kInterval = std::chrono::seconds(10);

  /// The line for this refusal, or nothing.
  std::optional<std::string> Add(const std::string& what, MonoTime now);
  /// The line for those suppressed since the last one, or nothing; for the end of the job.
  std::optional<std::string> Rest();

 private:
  std::optional<MonoTime> last_line_;
  uint64_t suppressed_ = 0;
};

}  // namespace fsdprun
