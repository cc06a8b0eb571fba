#include "agent/node/keeper_health.h"

#include <gtest/gtest.h>

#include <optional>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const MonoTime kNow{std::chrono::hours(1)};

TEST(KeeperHealthTest, DelaysDoubleUntilTooManyHaveFailedInARow) {
  KeeperHealth keeper;
  EXPECT_EQ(keeper.Lost(kNow), Duration{});
  for (const int delay_ms : {100, 200, 400, 800}) {
    keeper.Ready(kNow);
    EXPECT_TRUE(keeper.is_ready());
    EXPECT_EQ(keeper.Lost(kNow + seconds(9)), milliseconds(delay_ms));
    EXPECT_FALSE(keeper.is_ready());
  }
  EXPECT_EQ(keeper.Lost(kNow), std::nullopt);
  EXPECT_EQ(keeper.failures(), 6);
}

TEST(KeeperHealthTest, KeeperThatRanLongOrStartedWorkersWasHealthy) {
  KeeperHealth keeper;
  keeper.Lost(kNow);
  keeper.Lost(kNow);
  keeper.Ready(kNow);
  EXPECT_EQ(keeper.Lost(kNow + seconds(10)), Duration{});
  EXPECT_EQ(keeper.failures(), 1);
  keeper.Lost(kNow);
  keeper.HasProvenItself();
  EXPECT_EQ(keeper.Lost(kNow), Duration{});
}

TEST(KeeperHealthTest, KeeperThatNeverStartedWasNotHealthyHoweverLongItTook) {
  KeeperHealth keeper;
  keeper.Ready(kNow);
  keeper.Lost(kNow);
  EXPECT_EQ(keeper.Lost(kNow + seconds(60)), milliseconds(100));
}

}  // namespace
}  // namespace fsdprun
