#include "launcher/metrics/duration_histogram.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;

TEST(DurationHistogramTest, ABoundIsOfItsBucketAndBucketsAddUp) {
  DurationHistogram durations;
  for (const int ms : {-5, 10, 11, 30, 2000}) {
    durations.Add(milliseconds(ms));
  }
  const prometheus::ClientMetric::Histogram values = durations.Values();
  EXPECT_EQ(values.sample_count, 5U);
  EXPECT_NEAR(values.sample_sum, 2.051, 1e-9);
  EXPECT_EQ(values.bucket[0].cumulative_count, 2U);
  EXPECT_EQ(values.bucket[1].cumulative_count, 4U);
  EXPECT_EQ(values.bucket.back().cumulative_count, 5U);
}

}  // namespace
}  // namespace fsdprun
