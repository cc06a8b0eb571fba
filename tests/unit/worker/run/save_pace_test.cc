#include "worker/run/save_pace.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

using std::chrono::seconds;

const SavePace::Time kStart{std::chrono::hours(1)};

TEST(SavePaceTest, NothingIsLateThatHasNotBegun) {
  SavePace pace;
  EXPECT_FALSE(pace.MustTell(kStart));
}

TEST(SavePaceTest, FirstSaveIsLateAfterAMinuteAndThatIsToldOnce) {
  SavePace pace;
  pace.Begin(kStart);
  EXPECT_FALSE(pace.MustTell(kStart + seconds(59)));
  EXPECT_TRUE(pace.MustTell(kStart + seconds(60)));
  EXPECT_FALSE(pace.MustTell(kStart + seconds(600)));
  EXPECT_EQ(pace.Taken(kStart + seconds(600)), seconds(600));
}

TEST(SavePaceTest, SaveIsLateAfterTenPeriodsIfTheyAreLonger) {
  SavePace pace;
  pace.Begin(kStart);
  pace.Begin(kStart + seconds(2));
  EXPECT_TRUE(pace.MustTell(kStart + seconds(62)));
  pace.Begin(kStart + seconds(102));
  EXPECT_FALSE(pace.MustTell(kStart + seconds(102 + 999)));
  EXPECT_TRUE(pace.MustTell(kStart + seconds(102 + 1000)));
}

TEST(SavePaceTest, TrainingWaitsOnceForASave) {
  SavePace pace;
  pace.Begin(kStart);
  EXPECT_EQ(pace.WaitUntil(kStart + seconds(100)), kStart + seconds(160));
  EXPECT_EQ(pace.WaitUntil(kStart + seconds(300)), kStart + seconds(160));
  pace.Begin(kStart + seconds(400));
  EXPECT_EQ(pace.WaitUntil(kStart + seconds(401)), kStart + seconds(461));
}

}  // namespace
}  // namespace fsdprun::worker
