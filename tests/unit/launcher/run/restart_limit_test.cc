#include "launcher/run/restart_limit.h"

#include <gtest/gtest.h>

#include <chrono>

namespace fsdprun {
namespace {

TEST(RestartLimitTest, EndsARowOfShortRuns) {
  MonoTime now{std::chrono::hours(1)};
  RestartLimit limit(now);
  for (int i = 0; i < RestartLimit::kMaxInARow; ++i) {
    now += std::chrono::seconds(59);
    EXPECT_TRUE(limit.Take(now)) << i;
  }
  EXPECT_FALSE(limit.Take(now + std::chrono::seconds(59)));
}

TEST(RestartLimitTest, ALongRunBeginsANewRow) {
  MonoTime now{std::chrono::hours(1)};
  RestartLimit limit(now);
  for (int row = 0; row < 3; ++row) {
    now += RestartLimit::kLongRun;
    EXPECT_TRUE(limit.Take(now));
    for (int i = 1; i < RestartLimit::kMaxInARow; ++i) {
      EXPECT_TRUE(limit.Take(now)) << i;
    }
  }
  EXPECT_FALSE(limit.Take(now));
}

}  // namespace
}  // namespace fsdprun
