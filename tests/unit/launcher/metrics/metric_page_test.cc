#include "launcher/metrics/metric_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricPageTest, TextThatWouldVoidThePageIsReplaced) {
  MetricPage page(MetricPage::Labels{{"run_id", "run\xff\"\n\\"}});
  page.Gauge("step", "A step.", 3);
  EXPECT_THAT(page.Text(), HasSubstr("fsdprun_step{run_id=\"run\xef\xbf\xbd\\\"\\n\\\\\"} 3\n"));
}

TEST(MetricPageTest, RowsOfOneNameAreOneFamilyWhoeverAddsThem) {
  MetricPage page({});
  page.Counter("fenced_requests_total", "First.", 1, {{"by", "agent"}});
  page.Gauge("step", "A step.", 3);
  page.Counter("fenced_requests_total", "Second.", 2, {{"by", "coordinator"}});
  ASSERT_EQ(page.families().size(), 2U);
  EXPECT_EQ(page.families()[0].metric.size(), 2U);
  EXPECT_EQ(page.families()[0].help, "First.");
  EXPECT_THAT(page.Text(), HasSubstr("# TYPE fsdprun_fenced_requests_total counter\n"));
}

TEST(MetricPageTest, WhatEveryProcessHasKeepsItsUsualName) {
  MetricPage page({});
  page.Gauge("process_start_time_seconds", "Begin.", 1);
  EXPECT_THAT(page.Text(), Not(HasSubstr("fsdprun_")));
}

TEST(MetricPageTest, AHistogramHasAllBounds) {
  DurationHistogram durations;
  durations.Add(std::chrono::milliseconds(10));
  durations.Add(std::chrono::hours(2));
  MetricPage page({});
  page.Histogram("recovery_duration_seconds", "Recoveries.", durations, {{"until", "start"}});
  const std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("recovery_duration_seconds_bucket{until=\"start\",le=\"1800\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("recovery_duration_seconds_bucket{until=\"start\",le=\"+Inf\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("recovery_duration_seconds_count{until=\"start\"} 2\n"));
}

}  // namespace
}  // namespace fsdprun
