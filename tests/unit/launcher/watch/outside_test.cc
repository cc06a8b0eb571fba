// Workers that say nothing of themselves: what can be seen of them from outside.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/watch/simulated_training.h"

namespace fsdprun::watch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(OutsideTest, StoppedWorkerIsNamed) {
  SimulatedTraining job = RunningJob({.tells = false});
  job.Begin({.ranks = {2}, .state = 'T', .is_hang = true});
  EXPECT_LE(job.RunUntilFound(seconds(60)), kStoppedLimit + seconds(2));
  EXPECT_EQ(job.hang()->kind, HangKind::kStopped);
  EXPECT_THAT(RanksOf(job.hang()->culprits), ElementsAre(2));
  EXPECT_EQ(job.hang()->witness, -1);
}

TEST(OutsideTest, WorkerInUninterruptibleSleepIsNamed) {
  SimulatedTraining job = RunningJob({.tells = false});
  job.Begin({.ranks = {1}, .state = 'D', .is_hang = true});
  EXPECT_LE(job.RunUntilFound(minutes(5)), kAsleepLimit + seconds(3));
  EXPECT_EQ(job.hang()->kind, HangKind::kAsleep);
  EXPECT_THAT(RanksOf(job.hang()->culprits), ElementsAre(1));
}

TEST(OutsideTest, WorkersThatAllSleepAreFoundAfterLong) {
  SimulatedTraining job = RunningJob({.tells = false});
  job.Begin({.is_hang = true});
  const std::optional<Duration> after = job.RunUntilFound(minutes(30));
  ASSERT_TRUE(after.has_value());
  EXPECT_GE(*after, minutes(9));
  EXPECT_LE(*after, minutes(10) + seconds(4));
  EXPECT_EQ(job.hang()->kind, HangKind::kIdle);
  EXPECT_THAT(job.hang()->culprits, IsEmpty());
  EXPECT_THAT(job.hang()->what, HasSubstr("none of the 4 workers"));
}

TEST(OutsideTest, SleepThatEndsByItselfIsLearnt) {
  SimulatedTraining job = RunningJob({.tells = false});
  job.Begin({.length = minutes(8)});
  job.Run(minutes(10));
  job.Begin({.length = minutes(20)});
  job.Run(minutes(22));
  EXPECT_EQ(job.Texts(), "");
}

/// Reports of rank 0, without samples.
class ReportsTest : public ::testing::Test {
 protected:
  ReportsTest() { Step(WorldBegan{Generation(1), {{"a", 0, 1}}, seconds(1)}); }

  void Step(const Event& event) {
    const Findings found = watch_.Step(event, now_);
    found_.insert(found_.end(), found.begin(), found.end());
  }
  void Pass(Duration time) {
    for (const MonoTime end = now_ + time; now_ < end;) {
      now_ += seconds(1);
      Step(TimerDue{});
    }
  }
  void Report(int count, Duration apart) {
    for (int i = 0; i < count; ++i) {
      Step(StepReported{++step_});
      Pass(apart);
    }
  }

  ProgressWatch watch_{{}};
  MonoTime now_{std::chrono::hours(1)};
  int64_t step_ = 0;
  Findings found_;
};

TEST_F(ReportsTest, StepsThatAreReportedNoMoreAreMissed) {
  Report(20, seconds(2));
  Pass(minutes(9));
  EXPECT_TRUE(found_.empty());
  Pass(minutes(2));
  ASSERT_EQ(found_.size(), 1u);
  const auto& hang = std::get<HangFound>(found_.front());
  EXPECT_EQ(hang.kind, HangKind::kNoProgress);
  EXPECT_THAT(hang.what, HasSubstr("after step 20"));
  Report(1, seconds(2));
  ASSERT_EQ(found_.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<HangEnded>(found_.back()));
}

TEST_F(ReportsTest, RareReportsAreNormalWhereTheyAreRare) {
  Report(10, minutes(9));
  EXPECT_TRUE(found_.empty());
  Pass(minutes(30));
  EXPECT_TRUE(found_.empty());
  Pass(minutes(15));
  EXPECT_EQ(found_.size(), 1u);
}

TEST_F(ReportsTest, FewReportsProveNothing) {
  Report(3, seconds(1));
  Pass(std::chrono::hours(5));
  EXPECT_TRUE(found_.empty());
}

TEST_F(ReportsTest, TimeThatTheCoordinatorDidNotRunDoesNotCount) {
  Report(20, seconds(2));
  now_ += std::chrono::hours(10);
  Pass(minutes(1));
  EXPECT_TRUE(found_.empty());
}

}  // namespace
}  // namespace fsdprun::watch
