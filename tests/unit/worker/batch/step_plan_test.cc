#include "worker/batch/step_plan.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun::worker {
namespace {

TrainConfig Config(int64_t global, int64_t micro, const std::string& sampler = "global") {
  TrainConfig config;
  config.train.global_batch_size = global;
  config.train.micro_batch_size = micro;
  config.train.grad_accumulation = 1;
  config.data.sampler = sampler;
  return config;
}

std::string RefusalOf(const TrainConfig& config, int64_t ranks) {
  try {
    PlanStep(config, 0, ranks);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(StepPlanTest, RanksThatCannotShareABatchAreRefused) {
  EXPECT_EQ(RefusalOf(Config(2, 1), 3),
            "configuration: train.global_batch_size = 2 on 3 ranks: expected at least one sample "
            "for each; use fewer ranks or a larger batch");
  EXPECT_EQ(RefusalOf(Config(6, 1, "torch"), 4),
            "configuration: train.global_batch_size = 6 on 4 ranks: expected a multiple of the "
            "ranks with data.sampler = \"torch\", such as on 1, 2, 3, 6 ranks; set data.sampler to "
            "global to share it unevenly");
  EXPECT_EQ(RefusalOf(Config(6, 1, "torch"), 3), "");
}

TEST(StepPlanTest, WithoutGlobalBatchEachRankDoesTheSame) {
  TrainConfig config = Config(0, 2, "torch");
  config.train.grad_accumulation = 3;
  const StepPlan plan = PlanStep(config, 1, 4);
  EXPECT_EQ(plan.samples, 24);
  EXPECT_TRUE(plan.is_even);
  EXPECT_TRUE(plan.is_uniform());
  ASSERT_EQ(plan.forwards, 3);
  for (int64_t i = 0; i < plan.forwards; ++i) {
    EXPECT_EQ(plan.At(i).samples, 2);
    EXPECT_EQ(plan.At(i).divisor, 3.0);
  }
}

// Whatever the ranks and the micro batch: as many forwards on all, each sample once, and the mean
// over the ranks weighs each sample by 1 / G.
TEST(StepPlanTest, EachSampleCountsOnceAndAsMuch) {
  for (const int64_t global : {1, 4, 7, 12, 30}) {
    for (const int64_t micro : {1, 2, 5}) {
      for (int64_t ranks = 1; ranks <= std::min<int64_t>(global, 8); ++ranks) {
        const TrainConfig config = Config(global, micro);
        int64_t samples = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const StepPlan plan = PlanStep(config, rank, ranks);
          EXPECT_EQ(plan.samples, global);
          EXPECT_EQ(plan.forwards, PlanStep(config, 0, ranks).forwards);
          for (int64_t i = 0; i < plan.forwards; ++i) {
            const MicroBatch forward = plan.At(i);
            EXPECT_GE(forward.samples, 1);
            EXPECT_LE(forward.samples, micro);
            if (forward.divisor != 0) {
              samples += forward.samples;
              EXPECT_DOUBLE_EQ(1 / forward.divisor / static_cast<double>(ranks),
                               static_cast<double>(forward.samples) / static_cast<double>(global));
            }
          }
        }
        EXPECT_EQ(samples, global) << micro << " " << ranks;
      }
    }
  }
}

TEST(StepPlanTest, AStepOfAnyNumberOfForwardsTakesNoMemory) {
  TrainConfig config = Config(0, 1, "torch");
  config.train.grad_accumulation = int64_t{1} << 39;
  const StepPlan plan = PlanStep(config, 0, 2);
  EXPECT_EQ(plan.forwards, int64_t{1} << 39);
  EXPECT_EQ(plan.At(plan.forwards - 1).samples, 1);
}

TEST(StepPlanTest, LargestForwardIsThatOfTheRankWithMostOfABatch) {
  EXPECT_EQ(PlanStep(Config(64, 16), 0, 32).largest_forward(), 2);
  EXPECT_EQ(PlanStep(Config(65, 16), 31, 32).largest_forward(), 3);
  EXPECT_EQ(PlanStep(Config(64, 16), 0, 2).largest_forward(), 16);
  EXPECT_EQ(PlanStep(Config(0, 16), 0, 32).largest_forward(), 16);
}

}  // namespace
}  // namespace fsdprun::worker
