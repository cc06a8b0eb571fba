#include "worker/run/save_interval.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

using std::chrono::seconds;

const SaveInterval::Time kStart{std::chrono::hours(1)};

TEST(SaveIntervalTest, NothingIsDueBeforeTheTrainingBegins) {
  EXPECT_FALSE(SaveInterval(0.5).IsDue(kStart));
}

TEST(SaveIntervalTest, ASaveIsDueSoManyMinutesAfterTheLastBegan) {
  SaveInterval interval(0.5);
  interval.Begin(kStart);
  EXPECT_FALSE(interval.IsDue(kStart + seconds(29)));
  EXPECT_TRUE(interval.IsDue(kStart + seconds(30)));
  interval.Begin(kStart + seconds(30));
  EXPECT_FALSE(interval.IsDue(kStart + seconds(59)));
  EXPECT_TRUE(interval.IsDue(kStart + seconds(60)));
}

TEST(SaveIntervalTest, NoneIsDueEverAtZeroNorSoonAtAnyNumber) {
  SaveInterval never(0);
  never.Begin(kStart);
  EXPECT_FALSE(never.IsDue(kStart + std::chrono::hours(10'000)));
  SaveInterval late(3.4e38);
  late.Begin(kStart);
  EXPECT_FALSE(late.IsDue(kStart + std::chrono::hours(10'000)));
}

}  // namespace
}  // namespace fsdprun::worker
