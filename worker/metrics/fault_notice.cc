#include "worker/metrics/fault_notice.h"

namespace fsdprun::worker {
namespace {

constexpr auto kInterval = std::chrono::minutes(1);

}  // namespace

std::optional<std::string> FaultNotice::Tell(const std::string& text, Time now) {
  if (told_ && now - *told_ < kInterval) {
    ++untold_;
    return std::nullopt;
  }
  const std::string times = untold_ == 1 ? "once" : std::to_string(untold_) + " times";
  const std::string since =
      untold_ > 0 ? " (and " + times + " before, since it was told last)" : std::string();
  told_ = now;
  untold_ = 0;
  return text + since;
}

}  // namespace fsdprun::worker
