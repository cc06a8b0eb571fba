#include "launcher/run/refusal_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {

std::optional<std::string> RefusalLog::Add(const std::string& what, MonoTime now) {
  if (last_line_.has_value() && now - *last_line_ < kInterval) {
    ++left_out_;
    return std::nullopt;
  }
  last_line_ = now;
  const uint64_t left_out = std::exchange(left_out_, 0);
  return absl::StrCat("refused ", what,
                      left_out == 0 ? "" : absl::StrCat("; and ", left_out, " more before it"));
}

std::optional<std::string> RefusalLog::Rest() {
  const uint64_t left_out = std::exchange(left_out_, 0);
  return left_out == 0 ? std::nullopt
                       : std::make_optional(absl::StrCat("refused ", left_out, " more"));
}

}  // namespace fsdprun
