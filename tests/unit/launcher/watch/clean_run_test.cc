// What is no hang and no straggler: hours of runs with all that happens in them.

#include <gtest/gtest.h>

#include <chrono>

#include "tests/unit/launcher/watch/simulated_training.h"

namespace fsdprun::watch {
namespace {

std::set<int> OneOf(SimulatedTraining* job, int ranks) {
  return {static_cast<int>(job->random()() % static_cast<uint64_t>(ranks))};
}

/// An hour: every few minutes something that takes long, and is no hang.
void RunAnHour(const TrainingOptions& options, Duration length = std::chrono::hours(1)) {
  SimulatedTraining job(options);
  const MonoTime end = job.now() + length;
  job.Run(5 * options.warm_step + seconds(30));
  while (job.now() < end) {
    job.Run(seconds(60 + job.random()() % 240));
    Pause pause;
    switch (job.random()() % 8) {
      case 0:  // All save.
        pause = {.length = seconds(30)};
        break;
      case 1:  // One saves, and the others wait for it.
        pause = {.length = seconds(30), .ranks = {0}, .state = 'D'};
        break;
      case 2:
        pause = {.length = seconds(90), .activity = Activity::kEvaluating, .is_busy = true};
        break;
      case 3:
        pause = {.length = seconds(25),
                 .ranks = OneOf(&job, options.ranks),
                 .activity = Activity::kWaitingForData};
        break;
      case 4:  // A suspended laptop, a paused machine.
        pause = {.length = minutes(30), .is_unseen = true};
        break;
      case 5:
        pause = {.length = seconds(20),
                 .ranks = OneOf(&job, options.ranks),
                 .activity = Activity::kForward,
                 .is_busy = true};  // A new shape.
        break;
      case 6:  // A loaded machine, a slow link.
        pause = {.length = seconds(4), .activity = Activity::kForward, .is_collective = true};
        break;
      default:
        pause = {.length = seconds(5),
                 .ranks = OneOf(&job, options.ranks),
                 .activity = Activity::kOptimizer,
                 .state = 'T'};
        break;
    }
    job.Begin(pause);
  }
  EXPECT_EQ(job.Texts(), "") << "seed " << options.seed;
}

TEST(CleanRunTest, HoursOfAFewRanks) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    RunAnHour({.ranks = 4, .seed = seed, .step = milliseconds(50 + seed * 30)});
  }
}

TEST(CleanRunTest, HoursOfTwoRanksWithMuchNoise) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    RunAnHour({.ranks = 2, .ranks_per_node = 1, .seed = seed, .noise = 0.25});
  }
}

TEST(CleanRunTest, HoursOf64Ranks) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    RunAnHour({.ranks = 64, .ranks_per_node = 8, .seed = seed, .step = seconds(2), .noise = 0.1});
  }
}

/// Each second of them is 4096 samples.
TEST(CleanRunTest, SomeMinutesOf4096Ranks) {
  RunAnHour({.ranks = 4096, .ranks_per_node = 8, .seed = 3, .step = milliseconds(700)},
            std::chrono::minutes(8));
}

TEST(CleanRunTest, LongStepsAreNormalWhereTheyAreLong) {
  RunAnHour({.ranks = 8, .step = seconds(40), .collectives_per_step = 1, .warm_step = seconds(60)});
  RunAnHour({.ranks = 8, .step = seconds(20), .collectives_per_step = 3, .warm_step = seconds(20)});
}

/// As the page's documentation has it: a step and what it does, and no collectives. From the first
/// step after the warm ones on, and also in the next world, where a step may take as long as ever.
TEST(CleanRunTest, LongStepsOfProgramsThatOnlyCountThem) {
  for (const int step_s : {20, 40, 100}) {
    RunAnHour({.ranks = 4,
               .seed = static_cast<uint64_t>(step_s),
               .step = seconds(step_s),
               .collectives_per_step = 0,
               .warm_step = seconds(step_s)});
  }
}

/// A rank without a page, with whom nothing is wrong.
TEST(CleanRunTest, OneRankThatTellsNothing) { RunAnHour({.ranks = 4, .silent = {0}}); }

TEST(CleanRunTest, WorkersThatTellNothingOfThemselves) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    RunAnHour({.ranks = 4, .seed = seed, .tells = false});
  }
}

}  // namespace
}  // namespace fsdprun::watch
