#include "worker/metrics/run_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

/// 500 tokens, but for step 11 with 50.
StepMetrics At(int64_t step, float loss) {
  return {.step = step,
          .loss = loss,
          .tokens = step < 11 ? 500 * step : 5050 + 500 * (step - 11),
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

TEST(RunSummaryTest, StepsThatAreDoneAgainCountOnce) {
  RunSummary summary;
  summary.Step(At(11, 3.0F));
  summary.Step(At(12, 2.0F));
  summary.Step(At(13, 1.0F));
  summary.Evaluation(13, 0.5);
  summary.Step(At(14, 90.0F));
  summary.GoBackTo(12, At(12, 0).tokens);
  EXPECT_NE(summary.Text(75).find("  steps       11 to 12, 550 tokens in 1m15s\n"),
            std::string::npos)
      << summary.Text(75);
  EXPECT_NE(summary.Text(75).find("loss        3.0000 to 2.0000, lowest 2.0000 at step 12\n"),
            std::string::npos)
      << summary.Text(75);
  summary.Step(At(13, 2.5F));
  EXPECT_NE(summary.Text(75).find("  steps       11 to 13, 1050 tokens in 1m15s\n"),
            std::string::npos)
      << summary.Text(75);
  EXPECT_NE(summary.Text(75).find("loss        3.0000 to 2.5000, lowest 2.0000 at step 12\n"),
            std::string::npos)
      << summary.Text(75);
  EXPECT_EQ(summary.Plot(72, false).find("90.00"), std::string::npos);
}

TEST(RunSummaryTest, RunThatGoesBackBeforeItsFirstStepBeginsAnew) {
  RunSummary summary;
  summary.Step(At(11, 3.0F));
  summary.GoBackTo(8, 4000);
  EXPECT_EQ(summary.Text(1), "");
  summary.Step(At(9, 4.0F));
  EXPECT_NE(summary.Text(1).find("  steps       9 to 9, 500 tokens"), std::string::npos)
      << summary.Text(1);
}

TEST(RunSummaryTest, LossThatIsNotFiniteIsNotTheLowest) {
  RunSummary summary;
  summary.Step(At(1, std::nanf("")));
  EXPECT_EQ(summary.Text(1).find("lowest"), std::string::npos);
  summary.Step(At(2, 3.0F));
  summary.Step(At(3, -std::numeric_limits<float>::infinity()));
  EXPECT_NE(summary.Text(1).find("lowest 3.0000 at step 2"), std::string::npos) << summary.Text(1);
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

TEST(JoinedSeriesTest, OfALongSeriesTheFirstArePartlyKept) {
  JoinedSeries series(16);
  for (int i = 0; i < 1024; ++i) {
    series.Add(i);
  }
  const double seventh = series.values()[6];
  const size_t joined = 1024 / series.values().size();
  series.KeepFirst(2000);
  EXPECT_EQ(series.count(), 1024u);
  series.KeepFirst(6 * joined + 1);
  EXPECT_EQ(series.values().size(), 6u);
  EXPECT_EQ(series.count(), 6 * joined + 1);
  EXPECT_DOUBLE_EQ(series.last(), seventh);
  series.KeepFirst(0);
  EXPECT_EQ(series.count(), 0u);
  series.KeepFirst(0);
  series.Add(5);
  EXPECT_DOUBLE_EQ(series.last(), 5);
}

TEST(JoinedSeriesTest, ShortSeriesAreKeptAsTheyAre) {
  JoinedSeries series;
  series.Add(1);
  series.Add(5);
  EXPECT_EQ(series.values(), (std::vector<double>{1, 5}));
}

}  // namespace
}  // namespace fsdprun::worker
