#include "worker/metrics/run_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

StepMetrics At(int64_t step, float loss) {
  return {.step = step,
          .loss = loss,
          .tokens_per_second = step == 11 ? 100.0 : 1000.0,
          .step_seconds = 0.5,
          .data_wait_seconds = 0.005};
}

TEST(RunSummaryTest, NothingIsSaidOfARunWithoutSteps) {
  EXPECT_EQ(RunSummary().Text(1), "");
  EXPECT_EQ(RunSummary().Plot(72, false), "");
}

TEST(RunSummaryTest, SaysWhatWasDoneAndHowFast) {
  RunSummary summary;
  summary.Step(At(11, 3.0F));
  summary.Step(At(12, 1.5F));
  summary.Step(At(13, 2.0F));
  summary.Evaluation(13, 2.25);
  summary.Checkpoint("checkpoints/step-13");
  EXPECT_EQ(summary.Text(75),
            "  steps       11 to 13, 1050 tokens in 1m15s\n"
            "  speed       1000 tok/s (median); 1.00 % of the steps' time waiting for data\n"
            "  loss        3.0000 to 2.0000, lowest 1.5000 at step 12; eval 2.2500 after step 13\n"
            "  checkpoint  checkpoints/step-13\n");
  EXPECT_NE(summary.Plot(72, false).find("step 11"), std::string::npos);
}

TEST(RunSummaryTest, WhatIsNotKnownIsNotSaid) {
  RunSummary summary;
  summary.Step(At(1, 3.0F));
  EXPECT_EQ(summary.Text(1).find("eval"), std::string::npos);
  EXPECT_EQ(summary.Text(1).find("MFU"), std::string::npos);
  EXPECT_NE(summary.Text(1).find("  checkpoint  none was saved\n"), std::string::npos);
  StepMetrics known = At(2, 3.0F);
  known.mfu = 0.5;
  RunSummary of_gpus;
  of_gpus.Step(known);
  EXPECT_NE(of_gpus.Text(1).find(" tok/s (median), 50.0 % MFU;"), std::string::npos);
}

TEST(JoinedSeriesTest, KeepsTheMeanAndTheCourseInLittleMemory) {
  JoinedSeries series(16);
  for (int i = 0; i < 1024; ++i) {
    series.Add(i);
  }
  const std::vector<double>& values = series.values();
  EXPECT_LT(values.size(), 16u);
  EXPECT_GE(values.size(), 8u);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  EXPECT_DOUBLE_EQ(sum / static_cast<double>(values.size()), 511.5);
  EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
}

TEST(JoinedSeriesTest, ShortSeriesAreKeptAsTheyAre) {
  JoinedSeries series;
  series.Add(1);
  series.Add(5);
  EXPECT_EQ(series.values(), (std::vector<double>{1, 5}));
}

}  // namespace
}  // namespace fsdprun::worker
