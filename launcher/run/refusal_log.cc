#include "launcher/run/refusal_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {

std::optional<std::string> RefusalLog::Add(const std::string& what, MonoTime now) {
  if (last_line_.has_value() && now - *last_line_ < kInterval) {
    ++suppressed_;
    return std::nullopt;
  }
  last_line_ = now;
  const uint64_t suppressed = std::exchange(suppressed_, 0);
  return absl::StrCat("refused ", what,
                      suppressed == 0 ? "" : absl::StrCat("; and ", suppressed, " more before it"));
}

std::optional<std::string> RefusalLog::Rest() {
  const uint64_t suppressed = std::exchange(suppressed_, 0);
  return suppressed == 0 ? std::nullopt
                         : std::make_optional(absl::StrCat("refused ", suppressed, " more"));
}

}  // namespace fsdprun
