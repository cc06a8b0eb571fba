// Who is named for being slow, and who is not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/watch/simulated_training.h"

namespace fsdprun::watch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StragglerTest, RankThatIs15PercentSlowerIsNamedWithinAMinute) {
  for (const int ranks : {2, 3, 8, 64}) {
    SimulatedTraining job = RunningJob({.ranks = ranks, .step = milliseconds(300)});
    job.Slow(1, 0.15);
    const std::optional<Duration> after = job.RunUntilFound(minutes(5));
    ASSERT_TRUE(after.has_value());
    EXPECT_LE(*after, seconds(60));
    ASSERT_EQ(job.slow().size(), 1u);
    const SlowFound slow = job.slow().front();
    EXPECT_THAT(RanksOf(slow.ranks), ElementsAre(1));
    EXPECT_NEAR(slow.excess, 0.15, 0.05);
    EXPECT_EQ(slow.in, SlowIn::kComputing);
    EXPECT_THAT(slow.what,
                AllOf(HasSubstr("rank 1 on node node-0 computes 1"),
                      HasSubstr(" % longer than the others (2"), HasSubstr(" ms a step)")));
  }
}

TEST(StragglerTest, RankThatIsALittleSlowerIsNotNamed) {
  SimulatedTraining job = RunningJob();
  job.Slow(1, 0.06);
  job.Run(std::chrono::hours(1));
  EXPECT_EQ(job.Texts(), "");
}

TEST(StragglerTest, ItIsSaidInWhatItLosesItsTime) {
  SimulatedTraining data = RunningJob();
  data.Slow(2, 0.3, SlowIn::kWaitingForData);
  data.Run(minutes(1));
  ASSERT_EQ(data.slow().size(), 1u);
  EXPECT_EQ(data.slow().front().in, SlowIn::kWaitingForData);
  EXPECT_THAT(data.slow().front().what, HasSubstr("rank 2 on node node-1 waits longer"));
  SimulatedTraining save = RunningJob();
  save.Slow(2, 0.3, SlowIn::kSaving);
  save.Run(minutes(1));
  ASSERT_EQ(save.slow().size(), 1u);
  EXPECT_EQ(save.slow().front().in, SlowIn::kSaving);
}

TEST(StragglerTest, ItIsTakenBackWhenItEndsAndNotBefore) {
  SimulatedTraining job = RunningJob();
  job.Slow(3, 0.25);
  job.Run(minutes(20));
  ASSERT_EQ(job.found().size(), 1u) << job.Texts();
  EXPECT_EQ(job.watch().stragglers().size(), 1u);
  job.Slow(3, 0);
  job.Run(minutes(1));
  ASSERT_EQ(job.found().size(), 2u) << job.Texts();
  EXPECT_EQ(std::get<SlowEnded>(job.found().back()).id, job.slow().front().id);
  EXPECT_THAT(job.watch().stragglers(), IsEmpty());
}

TEST(StragglerTest, RankNearTheRatioDoesNotFlap) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimulatedTraining job = RunningJob({.seed = seed});
    job.Slow(1, 0.11);
    job.Run(std::chrono::hours(1));
    EXPECT_LE(job.found().size(), 1u) << job.Texts();
  }
}

TEST(StragglerTest, SlowNodeIsOneFinding) {
  SimulatedTraining job = RunningJob({.ranks = 32, .ranks_per_node = 8});
  for (int rank = 8; rank < 16; ++rank) {
    job.Slow(rank, 0.2);
  }
  job.Run(minutes(2));
  ASSERT_EQ(job.slow().size(), 1u) << job.Texts();
  EXPECT_EQ(job.slow().front().rank_count, 8);
  EXPECT_NEAR(job.slow().front().excess, 0.2, 0.06);
  EXPECT_THAT(job.slow().front().what,
              HasSubstr("ranks 8, 9, 10 and 5 more on node node-1 compute "));
}

TEST(StragglerTest, RatioIsTheUsers) {
  TrainingOptions strict;
  strict.watch.straggler_ratio = 0.04;
  SimulatedTraining job = RunningJob(strict);
  job.Slow(1, 0.07);
  job.Run(minutes(2));
  EXPECT_EQ(job.slow().size(), 1u);
  TrainingOptions off;
  off.watch.straggler_ratio = 0;
  SimulatedTraining quiet = RunningJob(off);
  quiet.Slow(1, 5);
  quiet.Run(minutes(10));
  EXPECT_EQ(quiet.Texts(), "");
}

/// With NCCL the device waits: every rank's own time is that of the step, and differs by noise.
TEST(StragglerTest, NobodyComputesSlowlyWhereNoWaitIsTold) {
  SimulatedTraining job = RunningJob({.tells_waits = false});
  job.Slow(1, 0.3);
  job.Run(minutes(10));
  EXPECT_EQ(job.Texts(), "");
  SimulatedTraining data = RunningJob({.tells_waits = false});
  data.Slow(2, 0.3, SlowIn::kWaitingForData);
  data.Run(minutes(2));
  EXPECT_EQ(data.slow().size(), 1u);
}

TEST(StragglerTest, WorldThatEndsTakesItBack) {
  SimulatedTraining job = RunningJob();
  job.Slow(3, 0.25);
  job.Run(minutes(2));
  const Findings found = job.watch().Step(WorldEnded{}, job.now());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(std::get<SlowEnded>(found.front()).what,
              HasSubstr("rank 3 on node node-1 is watched no longer"));
}

}  // namespace
}  // namespace fsdprun::watch
