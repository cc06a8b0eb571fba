#include "agent/node/keeper_health.h"

namespace fsdprun {
namespace {

constexpr Duration kFirstDelay = std::chrono::milliseconds(100);
/// A keeper that ran this long was healthy: its death resets the failure count.
constexpr Duration kHealthyAfter = std::chrono::seconds(10);
constexpr int kFailuresMax = 5;

}  // namespace

void KeeperHealth::Ready(MonoTime now) {
  is_ready_ = true;
  ready_at_ = now;
}

std::optional<Duration> KeeperHealth::Lost(MonoTime now) {
  const bool was_healthy = is_ready_ && now - ready_at_ >= kHealthyAfter;
  is_ready_ = false;
  failures_ = was_healthy ? 1 : failures_ + 1;
  if (failures_ > kFailuresMax) {
    return std::nullopt;
  }
  return failures_ <= 1 ? Duration{} : kFirstDelay * (1 << (failures_ - 2));
}

}  // namespace fsdprun
