#include "fsdpctl/doctor/pair/round_trips.h"

#include <gtest/gtest.h>

namespace fsdprun::doctor {
namespace {

constexpr int64_t kUs = 1000;

/// `ahead` is the other clock's offset; the answer takes 5 us there.
TripSample Sample(int64_t there, int64_t back, int64_t ahead) {
  const int64_t heard = 1'000'000 * kUs + there;
  return {.asked = 1'000'000 * kUs,
          .other_heard = heard + ahead,
          .other_answered = heard + 5 * kUs + ahead,
          .answered = heard + 5 * kUs + back};
}

TEST(RoundTripsTest, None) { EXPECT_EQ(Summarised({}).count, 0); }

TEST(RoundTripsTest, TimeAtTheOtherEndDoesNotCount) {
  const RoundTrips trips = Summarised({Sample(20 * kUs, 20 * kUs, 0)});
  EXPECT_EQ(trips.count, 1);
  EXPECT_DOUBLE_EQ(trips.median_us, 40);
  EXPECT_DOUBLE_EQ(trips.p99_us, 40);
  EXPECT_DOUBLE_EQ(trips.clock_offset_us, 0);
}

TEST(RoundTripsTest, TheQuickestTripComparesTheClocks) {
  const RoundTrips trips =
      Summarised({Sample(500 * kUs, 20 * kUs, -3000 * kUs), Sample(30 * kUs, 30 * kUs, -3000 * kUs),
                  Sample(20 * kUs, 900 * kUs, -3000 * kUs)});
  EXPECT_DOUBLE_EQ(trips.clock_offset_us, -3000);
  EXPECT_DOUBLE_EQ(trips.clock_error_us, 30);
  EXPECT_DOUBLE_EQ(trips.median_us, 520);
}

TEST(RoundTripsTest, OneInAHundredIsLeftOut) {
  std::vector<TripSample> samples(100, Sample(10 * kUs, 10 * kUs, 0));
  samples.push_back(Sample(900 * kUs, 10 * kUs, 0));
  EXPECT_DOUBLE_EQ(Summarised(samples).p99_us, 20);
}

}  // namespace
}  // namespace fsdprun::doctor
