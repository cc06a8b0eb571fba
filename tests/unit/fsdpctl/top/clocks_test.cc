#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "fsdpctl/top/aging.h"
#include "fsdpctl/top/step_rate.h"
#include "fsdpctl/top/world_clock.h"
#include "tests/unit/fsdpctl/top/shown_job.h"

namespace fsdprun::top {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

TEST(StepRateTest, StepsOfOneGenerationAreCounted) {
  StepRate rate;
  const MonoTime start{};
  EXPECT_EQ(rate.PerSecond(start), std::nullopt);
  rate.See(1, 10, start);
  rate.See(1, 10, start + seconds(1));
  EXPECT_EQ(rate.PerSecond(start + seconds(1)), std::nullopt);
  rate.See(1, 14, start + seconds(2));
  EXPECT_EQ(rate.PerSecond(start + seconds(2)), 2.0);
  rate.See(2, 12, start + seconds(3));
  EXPECT_EQ(rate.PerSecond(start + seconds(3)), std::nullopt);
  rate.See(2, -1, start + seconds(4));
  rate.See(2, 13, start + seconds(5));
  EXPECT_EQ(rate.PerSecond(start + seconds(5)), 0.5);
}

TEST(StepRateTest, OldStepsAreForgottenUnlessThereAreFewer) {
  StepRate rate;
  const MonoTime start{};
  rate.See(1, 0, start);
  rate.See(1, 1, start + minutes(10));
  EXPECT_EQ(rate.PerSecond(start + minutes(10)), 1.0 / 600);
  rate.See(1, 11, start + minutes(10) + seconds(10));
  EXPECT_EQ(rate.PerSecond(start + minutes(10) + seconds(10)), 1.0);
}

TEST(StepRateTest, AStepThatIsOverdueIsTheLessTheLonger) {
  StepRate rate;
  const MonoTime start{};
  rate.See(1, 10, start);
  rate.See(1, 20, start + seconds(10));  // Told of each tenth.
  EXPECT_EQ(rate.PerSecond(start + seconds(20)), 1.0);
  EXPECT_EQ(rate.PerSecond(start + seconds(30)), 0.5);
  EXPECT_EQ(rate.PerSecond(start + seconds(1010)), 0.01);
}

TEST(StepRateTest, AStepCountsFromWhenItWasReached) {
  StepRate rate;
  const MonoTime start{minutes(5)};
  rate.See(1, 7, start - seconds(59));
  rate.See(1, 8, start + seconds(1));
  EXPECT_EQ(rate.PerSecond(start + seconds(2)), 1.0 / 60);
}

TEST(AgingTest, NothingIsKnownAnewMeanwhile) {
  v1::JobStatus status = ShownJob(1, 1);
  Hangs(0, &status);
  status.set_kill_in_ns(kSecondNs);
  status.set_last_failure_age_ns(kSecondNs);
  v1::OwnVitals* const own = status.mutable_workers(0)->mutable_vitals()->mutable_own();
  own->set_collective_age_ns(kSecondNs);
  AddAge(60 * kSecondNs, &status);
  EXPECT_EQ(status.age_ns(), (3 * 3600 + 60) * kSecondNs);
  EXPECT_EQ(status.progress_age_ns(), 61 * kSecondNs);
  EXPECT_EQ(status.last_failure_age_ns(), 61 * kSecondNs);
  EXPECT_EQ(status.kill_in_ns(), 0);
  EXPECT_EQ(status.findings(0).age_ns(), 62 * kSecondNs);
  EXPECT_EQ(status.nodes(0).heard_age_ns(), 60 * kSecondNs + kSecondNs / 5);
  EXPECT_EQ(status.workers(0).vitals_age_ns(), 60 * kSecondNs + kSecondNs / 2);
  EXPECT_EQ(own->collective_age_ns(), kSecondNs);  // As it was then.
  v1::JobStatus bare;
  AddAge(1, &bare);
  EXPECT_FALSE(bare.has_progress_age_ns() || bare.has_kill_in_ns() ||
               bare.has_last_failure_age_ns());
}

TEST(WorldClockTest, EachWorldBeginsAnew) {
  WorldClock clock;
  const MonoTime start{minutes(1)};
  v1::JobStatus status = ShownJob(1, 1);
  EXPECT_EQ(clock.RunningFor(start), Duration{});
  clock.See(status, start);
  clock.See(status, start + seconds(1));
  EXPECT_EQ(clock.RunningFor(start + seconds(2)), seconds(2));
  status.set_phase("stopping");
  clock.See(status, start + seconds(3));
  EXPECT_EQ(clock.RunningFor(start + seconds(4)), Duration{});
  status.set_phase("running");
  status.set_generation(3);
  clock.See(status, start + seconds(5));
  EXPECT_EQ(clock.RunningFor(start + seconds(6)), seconds(1));
  status.mutable_coordinator()->set_pid(7);
  clock.See(status, start + seconds(8));
  EXPECT_EQ(clock.RunningFor(start + seconds(9)), seconds(1));
}

}  // namespace
}  // namespace fsdprun::top
