#include "worker/run/save_interval.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

using std::chrono::seconds;

const SaveInterval::Time kTrainingBegan{std::chrono::hours(1)};

TEST(SaveIntervalTest, NothingIsDueBeforeTheTrainingBegins) {
  EXPECT_FALSE(SaveInterval(0.5).IsDue(kTrainingBegan));
}

TEST(SaveIntervalTest, ASaveIsDueSoManyMinutesAfterTheLastBegan) {
  SaveInterval interval(0.5);
  interval.Begin(kTrainingBegan);
  EXPECT_FALSE(interval.IsDue(kTrainingBegan + seconds(29)));
  EXPECT_TRUE(interval.IsDue(kTrainingBegan + seconds(30)));
  interval.Begin(kTrainingBegan + seconds(30));
  EXPECT_FALSE(interval.IsDue(kTrainingBegan + seconds(59)));
  EXPECT_TRUE(interval.IsDue(kTrainingBegan + seconds(60)));
}

TEST(SaveIntervalTest, NoneIsDueEverAtZeroNorSoonAtAnyNumber) {
  SaveInterval never(0);
  never.Begin(kTrainingBegan);
  EXPECT_FALSE(never.IsDue(kTrainingBegan + std::chrono::hours(10'000)));
  SaveInterval late(3.4e38);
  late.Begin(kTrainingBegan);
  EXPECT_FALSE(late.IsDue(kTrainingBegan + std::chrono::hours(10'000)));
}

}  // namespace
}  // namespace fsdprun::worker
