#include "worker/run/stop_plan.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Not the epoch, so that a forgotten addition shows.
constexpr StopPlan::Time kStart{std::chrono::hours(7)};

TEST(StopPlanTest, WithoutARequestEverythingFits) {
  StopPlan plan;
  plan.NoteSave(std::chrono::hours(9));
  EXPECT_FALSE(plan.is_requested());
  EXPECT_TRUE(plan.CanFinishStep(kStart, std::chrono::hours(9)));
  EXPECT_FALSE(plan.MustGiveUpSave(kStart + std::chrono::hours(9)));
}

TEST(StopPlanTest, StepAndSaveMustFitIntoTheGraceLessASecond) {
  StopPlan plan;
  plan.NoteSave(seconds(4));
  plan.Request(kStart, seconds(20));
  EXPECT_TRUE(plan.is_requested());
  EXPECT_TRUE(plan.CanFinishStep(kStart + seconds(10), seconds(5)));
  EXPECT_FALSE(plan.CanFinishStep(kStart + seconds(10), milliseconds(5001)));
  plan.NoteSave(seconds(9));
  EXPECT_TRUE(plan.CanFinishStep(kStart + seconds(10), seconds(0)));
  EXPECT_FALSE(plan.CanFinishStep(kStart + seconds(10), milliseconds(1)));
}

TEST(StopPlanTest, MarginOfAShortGraceIsATenth) {
  StopPlan plan;
  plan.Request(kStart, seconds(2));
  EXPECT_TRUE(plan.CanFinishStep(kStart, milliseconds(1800)));
  EXPECT_FALSE(plan.CanFinishStep(kStart, milliseconds(1801)));
}

TEST(StopPlanTest, SaveIsGivenUpWhenTheGraceIsNearlyOver) {
  StopPlan plan;
  plan.NoteSave(seconds(500));  // only a guess, so it is tried
  plan.Request(kStart, seconds(20));
  EXPECT_FALSE(plan.MustGiveUpSave(kStart + milliseconds(18'999)));
  EXPECT_TRUE(plan.MustGiveUpSave(kStart + seconds(19)));
}

TEST(StopPlanTest, GraceCountsFromTheSignalThatCameBeforeIt) {
  StopPlan plan;
  plan.Request(kStart);
  plan.Request(kStart + seconds(3));
  plan.Request(kStart + seconds(5), seconds(20));
  EXPECT_FALSE(plan.MustGiveUpSave(kStart + milliseconds(18'999)));
  EXPECT_TRUE(plan.MustGiveUpSave(kStart + seconds(19)));
}

TEST(StopPlanTest, SignalAloneLeavesHalfAMinuteForTheStepAndAnyTimeForTheSave) {
  StopPlan plan;
  plan.Request(kStart);
  EXPECT_TRUE(plan.CanFinishStep(kStart, seconds(29)));
  EXPECT_FALSE(plan.CanFinishStep(kStart, milliseconds(29'001)));
  EXPECT_FALSE(plan.MustGiveUpSave(kStart + std::chrono::hours(1)));
  static_assert(StopPlan::kUnknownGrace == seconds(30));
}

TEST(StopPlanTest, StepIsGivenHalfAMinuteUntilOneWasMeasuredAndThenAFewSteps) {
  StopPlan plan;
  EXPECT_EQ(plan.step_timeout(), StopPlan::kUnknownStep);
  static_assert(StopPlan::kUnknownStep == seconds(30));
  plan.Request(kStart, seconds(2));
  EXPECT_EQ(plan.step_timeout(), seconds(30));  // whoever asked ends it sooner
  plan.NoteStep(seconds(20));
  EXPECT_EQ(plan.step_timeout(), seconds(80));
  plan.NoteStep(milliseconds(501));
  EXPECT_EQ(plan.step_timeout(), milliseconds(2004));
  plan.NoteStep(milliseconds(500));
  EXPECT_EQ(plan.step_timeout(), seconds(2));
  plan.NoteStep(StopPlan::Duration(1));
  EXPECT_EQ(plan.step_timeout(), seconds(2));
}

TEST(StopPlanTest, AnotherGraceShortensTheTimeAndNeverExtendsIt) {
  StopPlan plan;
  plan.Request(kStart, seconds(30));
  plan.Request(kStart + seconds(10), seconds(30));  // the same record, read again
  EXPECT_TRUE(plan.MustGiveUpSave(kStart + seconds(29)));
  plan.Request(kStart + seconds(10), seconds(2));
  EXPECT_FALSE(plan.MustGiveUpSave(kStart + milliseconds(11'799)));
  EXPECT_TRUE(plan.MustGiveUpSave(kStart + milliseconds(11'800)));
  plan.Request(kStart + seconds(11), seconds(60));
  EXPECT_TRUE(plan.MustGiveUpSave(kStart + milliseconds(11'800)));
}

}  // namespace
}  // namespace fsdprun::worker
