// Who a hang is laid at the door of, and when.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/watch/simulated_training.h"

namespace fsdprun::watch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// How long it took until the hang was found; it must be the only finding.
Duration FoundAfter(SimulatedTraining* job, Pause pause, Duration at_most = seconds(60)) {
  pause.is_hang = true;
  job->Begin(std::move(pause));
  const std::optional<Duration> after = job->RunUntilFound(at_most);
  EXPECT_TRUE(after.has_value());
  EXPECT_EQ(job->found().size(), 1u) << job->Texts();
  EXPECT_NE(job->hang(), nullptr);
  return after.value_or(Duration{});
}

TEST(HangTest, StoppedWorkerIsNamedSoon) {
  for (const int step_ms : {50, 200, 500}) {
    SimulatedTraining job = RunningJob({.step = milliseconds(step_ms)});
    const Duration limit = job.watch().StepLimit(job.now());
    EXPECT_LE(limit, seconds(10));
    const Duration after =
        FoundAfter(&job, {.ranks = {2}, .activity = Activity::kForward, .state = 'T'});
    EXPECT_LE(after, limit + seconds(2));
    const HangFound& hang = *job.hang();
    EXPECT_EQ(hang.kind, HangKind::kStopped);
    EXPECT_THAT(RanksOf(hang.culprits), ElementsAre(2));
    EXPECT_EQ(hang.witness, 0);
    EXPECT_THAT(hang.what, AllOf(HasSubstr("rank 2 (pid 1002) on node node-1 has been stopped"),
                                 HasSubstr("3 others wait in all_gather of layers.3 (4.2 MB)"),
                                 HasSubstr("kill -CONT")));
  }
}

TEST(HangTest, TracedAndDeadWorkersAreNamedAsSuch) {
  for (const auto& [state, words] : {std::pair('t', "debugger"), std::pair('Z', "dead")}) {
    SimulatedTraining job = RunningJob();
    FoundAfter(&job, {.ranks = {1}, .activity = Activity::kForward, .state = state});
    EXPECT_THAT(job.hang()->what, HasSubstr(words));
  }
}

TEST(HangTest, RankThatDoesNotEnterIsNamedWithWhatItDoes) {
  SimulatedTraining job = RunningJob();
  const Duration limit = job.watch().StepLimit(job.now());
  const Duration after =
      FoundAfter(&job, {.ranks = {3}, .activity = Activity::kBackward, .state = 'D'});
  EXPECT_LE(after, limit + seconds(3));
  EXPECT_EQ(job.hang()->kind, HangKind::kBehind);
  EXPECT_THAT(RanksOf(job.hang()->culprits), ElementsAre(3));
  EXPECT_THAT(job.hang()->what,
              AllOf(HasSubstr("rank 3 (pid 1003) on node node-1 has not moved"),
                    HasSubstr("the backward pass"), HasSubstr("uninterruptible sleep"),
                    HasSubstr("3 others wait in all_gather of layers.3")));
}

TEST(HangTest, RankThatComputesAllTheTimeHasLonger) {
  SimulatedTraining job = RunningJob();
  const Duration after =
      FoundAfter(&job, {.ranks = {0}, .activity = Activity::kForward, .is_busy = true});
  EXPECT_GE(after, kBusyFloor);
  EXPECT_LE(after, kBusyFloor + seconds(6));
  EXPECT_THAT(job.hang()->what, HasSubstr("it computes all the time"));
}

TEST(HangTest, CollectiveThatAllHaveEnteredIsTheNetworks) {
  SimulatedTraining job = RunningJob();
  FoundAfter(&job, {.activity = Activity::kForward, .is_collective = true});
  EXPECT_EQ(job.hang()->kind, HangKind::kCollective);
  EXPECT_THAT(job.hang()->culprits, IsEmpty());
  EXPECT_THAT(job.hang()->what, AllOf(HasSubstr("all 4 workers have entered all_gather"),
                                      HasSubstr("the network between nodes node-0 and node-1")));
}

TEST(HangTest, SaveThatNeverEndsIsFoundAfterItsOwnLimit) {
  SimulatedTraining job = RunningJob();
  const Duration after =
      FoundAfter(&job, {.ranks = {0}, .activity = Activity::kSaving}, minutes(20));
  EXPECT_GE(after, minutes(10));
  EXPECT_LE(after, minutes(10) + seconds(4));
  EXPECT_THAT(RanksOf(job.hang()->culprits), ElementsAre(0));
  EXPECT_THAT(job.hang()->what, HasSubstr("saving a checkpoint"));
}

TEST(HangTest, RankThatWaitsForDataIsFoundAfterAMinute) {
  SimulatedTraining job = RunningJob();
  const Duration after =
      FoundAfter(&job, {.ranks = {1}, .activity = Activity::kWaitingForData}, minutes(5));
  EXPECT_GE(after, minutes(1));
  EXPECT_LE(after, minutes(1) + seconds(4));
  EXPECT_THAT(RanksOf(job.hang()->culprits), ElementsAre(1));
  EXPECT_THAT(job.hang()->what, HasSubstr("waiting for data"));
}

TEST(HangTest, HangEndsWhenTheRankGoesOnAndTheNextOneIsAnother) {
  SimulatedTraining job = RunningJob();
  FoundAfter(&job, {.ranks = {2}, .activity = Activity::kForward, .state = 'T'});
  EXPECT_TRUE(job.watch().hang().has_value());
  job.GoOn();
  job.Run(seconds(3));
  EXPECT_FALSE(job.watch().hang().has_value());
  ASSERT_EQ(job.found().size(), 2u);
  const uint64_t ended = std::get<HangEnded>(job.found().back()).id;
  EXPECT_EQ(ended, job.hang()->id);
  job.Begin({.ranks = {1}, .activity = Activity::kForward, .state = 'T', .is_hang = true});
  EXPECT_LE(job.RunUntilFound(seconds(60)), seconds(10));
  EXPECT_EQ(std::get<HangFound>(job.found().back()).id, ended + 1);
}

TEST(HangTest, StopDoesNotTeachThatStandingIsNormal) {
  SimulatedTraining job = RunningJob();
  const Duration limit = job.watch().StepLimit(job.now());
  job.Begin({.length = minutes(5), .ranks = {2}, .activity = Activity::kForward, .state = 'T'});
  job.Run(minutes(6));
  EXPECT_EQ(job.watch().StepLimit(job.now()), limit);
}

TEST(HangTest, WhatGoesOnByItselfIsLearnt) {
  SimulatedTraining job = RunningJob();
  job.Begin({.length = seconds(15), .ranks = {2}, .activity = Activity::kForward});
  job.Run(seconds(20));
  EXPECT_EQ(job.found().size(), 2u) << job.Texts();  // Found, and over.
  EXPECT_GE(job.watch().StepLimit(job.now()), seconds(60));
  job.Begin({.length = seconds(30), .ranks = {2}, .activity = Activity::kForward});
  job.Run(seconds(60));
  EXPECT_EQ(job.found().size(), 2u) << job.Texts();
}

TEST(HangTest, FirstStepsHaveALimitOfTheirOwn) {
  SimulatedTraining job({.warm_step = seconds(300)});
  job.Begin({.ranks = {1}, .activity = Activity::kForward, .is_hang = true});
  const std::optional<Duration> after = job.RunUntilFound(minutes(20));
  ASSERT_TRUE(after.has_value());
  EXPECT_GE(*after, minutes(10));
  EXPECT_LE(*after, minutes(10) + seconds(4));
}

TEST(HangTest, GivenLimitCountsForEverything) {
  TrainingOptions options;
  options.watch.limits.fixed = seconds(20);
  for (const Activity activity : {Activity::kForward, Activity::kSaving}) {
    SimulatedTraining job = RunningJob(options);
    const Duration after = FoundAfter(&job, {.ranks = {1}, .activity = activity});
    EXPECT_GE(after, seconds(19));
    EXPECT_LE(after, seconds(23));
  }
}

TEST(HangTest, NothingIsLookedForWhereNobodyWants) {
  TrainingOptions options;
  options.watch.looks_for_hangs = false;
  SimulatedTraining job(options);
  job.Run(minutes(3));
  job.Begin({.ranks = {2}, .activity = Activity::kForward, .state = 'T', .is_hang = true});
  EXPECT_EQ(job.RunUntilFound(minutes(30)), std::nullopt);
}

TEST(HangTest, WorldThatEndsEndsItsHang) {
  SimulatedTraining job = RunningJob();
  FoundAfter(&job, {.ranks = {2}, .activity = Activity::kForward, .state = 'T'});
  const Findings found = job.watch().Step(WorldEnded{}, job.now());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(std::get<HangEnded>(found.front()).what, HasSubstr("its world has ended"));
  EXPECT_EQ(job.watch().wake_at(), MonoTime::max());
}

TEST(HangTest, WorkersThatHaveEndedOrTellNothingAreNotJudged) {
  SimulatedTraining job = RunningJob();
  job.StopTelling(3);
  job.Run(minutes(5));
  EXPECT_EQ(job.Texts(), "");
  FoundAfter(&job, {.ranks = {0}, .activity = Activity::kForward, .state = 'D'});
  EXPECT_THAT(RanksOf(job.hang()->culprits), ElementsAre(0));
  EXPECT_THAT(job.hang()->what, HasSubstr("nothing is heard of 1 other worker"));
}

TEST(HangTest, RankThatTellsNothingIsNotAskedAboutItsCollective) {
  SimulatedTraining job = RunningJob({.silent = {0}});
  FoundAfter(&job, {.activity = Activity::kForward, .is_collective = true});
  EXPECT_EQ(job.hang()->kind, HangKind::kCollective);
  EXPECT_THAT(job.hang()->what,
              AllOf(HasSubstr("all 3 workers that say what they do have entered all_gather"),
                    HasSubstr("1 others say nothing of themselves")));
  // And it is one hang, however often it is looked at.
  job.Run(minutes(10));
  EXPECT_EQ(job.found().size(), 1u) << job.Texts();
  EXPECT_GE(job.watch().hang_lasted(), minutes(9));
}

TEST(HangTest, RankThatComputesWithACollectiveUnderWayHasLonger) {
  SimulatedTraining job = RunningJob();
  const Duration after =
      FoundAfter(&job, {.activity = Activity::kForward, .is_busy = true, .is_collective = true});
  EXPECT_GE(after, kBusyFloor);
}

TEST(HangTest, StoppedTimeIsNobodysAndIsNotLearnt) {
  SimulatedTraining job = RunningJob({.step = seconds(20), .collectives_per_step = 0});
  job.Run(seconds(5));  // In the middle of a step: it goes on where it was.
  const Duration limit = job.watch().StepLimit(job.now());
  job.Begin({.length = minutes(60), .ranks = {2}, .activity = Activity::kForward, .state = 'T'});
  job.Run(minutes(70));
  EXPECT_EQ(job.found().size(), 2u) << job.Texts();  // Stopped, and over.
  EXPECT_LE(job.watch().StepLimit(job.now()), limit + kFactor * seconds(2));
}

TEST(HangTest, NobodyElseIsNamedWhileOneIsTraced) {
  SimulatedTraining job = RunningJob({.collectives_per_step = 0, .warm_step = seconds(1)});
  job.Begin({.length = seconds(23), .ranks = {2}, .activity = Activity::kForward, .state = 't'});
  job.Run(minutes(2));
  EXPECT_EQ(job.Texts(), "");
}

TEST(HangTest, WhatWasJustToldIsNotToldAgainAtOnce) {
  SimulatedTraining job = RunningJob();
  for (int stop = 0; stop < 5; ++stop) {
    job.Begin({.length = seconds(11), .ranks = {2}, .activity = Activity::kForward, .state = 'T'});
    job.Run(seconds(14));
  }
  EXPECT_LE(job.found().size(), 4u) << job.Texts();
}

TEST(HangTest, OutageThatEndsByItselfIsForgottenWithinADay) {
  SimulatedTraining job = RunningJob();
  job.Begin({.length = minutes(60), .activity = Activity::kForward, .is_collective = true});
  job.Run(minutes(61));
  EXPECT_GE(job.watch().StepLimit(job.now()), minutes(29));
  EXPECT_LE(job.watch().StepLimit(job.now() + std::chrono::hours(20)), minutes(1));
}

/// Whatever the job and whoever it is, it is the one.
TEST(HangTest, CulpritIsTheOneThatWasInjected) {
  std::mt19937_64 random(7);
  for (int run = 0; run < 300; ++run) {
    const int ranks = 2 + static_cast<int>(random() % 31);
    SimulatedTraining job({.ranks = ranks,
                           .ranks_per_node = 1 + static_cast<int>(random() % 8),
                           .seed = random(),
                           .step = milliseconds(50 + random() % 2000),
                           .collectives_per_step = 1 + random() % 100,
                           .warm_step = seconds(1 + random() % 10)});
    job.Run(seconds(120 + random() % 60));
    ASSERT_EQ(job.Texts(), "");
    Pause pause;
    const int count = 1 + static_cast<int>(random() % static_cast<uint64_t>((ranks + 1) / 2));
    while (static_cast<int>(pause.ranks.size()) < std::min(count, ranks - 1)) {
      pause.ranks.insert(static_cast<int>(random() % static_cast<uint64_t>(ranks)));
    }
    const char states[] = {'T', 'D', 'S', 'R'};
    pause.state = states[random() % 4];
    pause.is_busy = pause.state == 'R';
    pause.activity = random() % 2 == 0 ? Activity::kForward : Activity::kOptimizer;
    const std::vector<int> injected(pause.ranks.begin(), pause.ranks.end());
    FoundAfter(&job, pause, minutes(3));
    ASSERT_EQ(job.hang()->culprit_count, static_cast<int>(injected.size())) << job.Texts();
    const size_t named = std::min(injected.size(), kPlacesMax);
    ASSERT_THAT(RanksOf(job.hang()->culprits), ::testing::ElementsAreArray(injected.data(), named));
  }
}

}  // namespace
}  // namespace fsdprun::watch
