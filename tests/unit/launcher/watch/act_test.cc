// When something is done about a hang, which is later than it is told.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/watch/simulated_training.h"

namespace fsdprun::watch {
namespace {

using ::testing::HasSubstr;

/// Runs until something is to be done; how long the hang had lasted then.
std::optional<Duration> ActedOnAfter(SimulatedTraining* job, Duration at_most) {
  for (const MonoTime end = job->now() + at_most; job->now() < end;) {
    job->Run(seconds(1));
    if (job->watch().IsToBeActedOn()) {
      return job->watch().hang_lasted();
    }
  }
  return std::nullopt;
}

TEST(ActTest, ShortStandstillIsToldAndNothingIsDone) {
  SimulatedTraining job = RunningJob();
  job.Begin({.length = seconds(50), .ranks = {2}, .activity = Activity::kForward});
  EXPECT_EQ(ActedOnAfter(&job, minutes(3)), std::nullopt);
  EXPECT_EQ(job.found().size(), 2u) << job.Texts();  // Found, and over.
}

TEST(ActTest, HangThatLastsIsActedOn) {
  for (const char state : {'T', 'S'}) {
    SimulatedTraining job = RunningJob();
    job.Begin({.ranks = {2}, .activity = Activity::kForward, .state = state, .is_hang = true});
    const std::optional<Duration> after = ActedOnAfter(&job, minutes(3));
    ASSERT_TRUE(after.has_value());
    EXPECT_GE(*after, kActFloor);
    EXPECT_LE(*after, kActFloor + seconds(3));
  }
}

TEST(ActTest, LongLimitIsExceededByMinutesOnly) {
  SimulatedTraining job = RunningJob();
  job.Begin({.ranks = {0}, .activity = Activity::kSaving, .is_hang = true});
  const std::optional<Duration> after = ActedOnAfter(&job, minutes(40));
  ASSERT_TRUE(after.has_value());
  EXPECT_GE(*after, minutes(20));
  EXPECT_LE(*after, minutes(20) + seconds(3));
}

TEST(ActTest, GivenLimitIsTheUsersWord) {
  TrainingOptions options;
  options.watch.limits.fixed = seconds(20);
  SimulatedTraining job = RunningJob(options);
  job.Begin({.ranks = {2}, .activity = Activity::kForward, .is_hang = true});
  EXPECT_LE(ActedOnAfter(&job, minutes(3)), seconds(23));
}

TEST(ActTest, NextWorldIsNotStoppedForTheSame) {
  SimulatedTraining job = RunningJob();
  const Duration before = job.watch().StepLimit(job.now());
  job.Begin({.ranks = {2}, .activity = Activity::kForward, .is_hang = true});
  ASSERT_TRUE(ActedOnAfter(&job, minutes(3)).has_value());
  job.watch().Step(ActedOnHang{}, job.now());
  EXPECT_LT(before, seconds(30));
  EXPECT_GE(job.watch().StepLimit(job.now()), kFactor * kActFloor);
}

TEST(ActTest, PauseOfAProgramThatSaysNothingIsOnlyToldUntilOneWasSeen) {
  SimulatedTraining job = RunningJob({.tells = false});
  job.Begin({.length = std::chrono::hours(5)});
  EXPECT_EQ(ActedOnAfter(&job, std::chrono::hours(6)), std::nullopt);
  ASSERT_EQ(job.found().size(), 2u) << job.Texts();
  EXPECT_THAT(job.Texts(), HasSubstr("has used the CPU"));
  job.Begin({.is_hang = true});
  EXPECT_NE(ActedOnAfter(&job, std::chrono::hours(6)), std::nullopt);
}

}  // namespace
}  // namespace fsdprun::watch
