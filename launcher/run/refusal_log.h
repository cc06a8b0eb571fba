#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/mono_time.h"

namespace fsdprun {

/// Decides which refused strangers are worth a log line: the first, then at most one per interval
/// with the number of those left out, so that a scanner or an agent with an old token cannot fill
/// the log. Pure: no clock.
class RefusalLog {
 public:
  static constexpr Duration kInterval = std::chrono::seconds(10);

  /// The line for this refusal, or nothing.
  std::optional<std::string> Add(const std::string& what, MonoTime now);
  /// The line for those that were left out since the last one, or nothing; for the end.
  std::optional<std::string> Rest();

 private:
  std::optional<MonoTime> last_line_;
  uint64_t left_out_ = 0;
};

}  // namespace fsdprun
