#include "worker/train/progress.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdprun::worker {
namespace {

const StepMetrics kMetrics{5, 2.31F, 0.92F, 3e-4, 1280, 12345, 0.1, int64_t{410} << 20};

TEST(ProgressTest, LineHasAllNumbers) {
  EXPECT_EQ(FormatProgress(kMetrics, 192),
            "loss 2.3100  grad 0.92  lr 3.00e-04  12.3k tok/s  410 MiB  ETA 3m12s");
}

TEST(ProgressTest, DurationsReadAsPeopleSayThem) {
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatDuration(59.4), "59s");
  EXPECT_EQ(FormatDuration(3599), "59m59s");
  EXPECT_EQ(FormatDuration(4 * 3600 + 5 * 60), "4h05m");
  EXPECT_EQ(FormatDuration(51 * 3600), "2d03h");
  EXPECT_EQ(FormatDuration(-1), "-");
  EXPECT_EQ(FormatDuration(std::nan("")), "-");
}

TEST(ProgressTest, EtaFollowsTheRecentSpeed) {
  EtaEstimate eta;
  eta.Record(1);
  EXPECT_DOUBLE_EQ(eta.SecondsFor(10), 10);
  for (int i = 0; i < 200; ++i) {
    eta.Record(3);
  }
  EXPECT_NEAR(eta.SecondsFor(10), 30, 1e-6);
}

TEST(ProgressTest, PlainViewPrintsEveryFewStepsAndTheLast) {
  ControlChannel none(-1);
  testing::internal::CaptureStdout();
  {
    Progress progress(ProgressView::kPlain, 5, 2, none);
    for (int64_t step = 1; step <= 5; ++step) {
      StepMetrics metrics = kMetrics;
      metrics.step = step;
      progress.Step(metrics);
    }
    progress.Event("hello");
  }
  const std::string output = testing::internal::GetCapturedStdout();
  EXPECT_EQ(output.find("step 1/5"), std::string::npos);
  EXPECT_NE(output.find("step 2/5  loss 2.3100"), std::string::npos);
  EXPECT_NE(output.find("step 4/5"), std::string::npos);
  EXPECT_NE(output.find("step 5/5"), std::string::npos);
  EXPECT_NE(output.find("\nhello\n"), std::string::npos);
  EXPECT_EQ(output.find('\r'), std::string::npos);
}

TEST(ProgressTest, OtherRanksAreSilent) {
  ControlChannel none(-1);
  testing::internal::CaptureStdout();
  Progress progress(ProgressView::kNone, 5, 1, none);
  progress.Step(kMetrics);
  progress.Event("hello");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace fsdprun::worker
