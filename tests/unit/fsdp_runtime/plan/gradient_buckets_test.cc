#include "fsdp_runtime/plan/gradient_buckets.h"

#include <gtest/gtest.h>

namespace fsdp::plan {
namespace {

std::vector<GradientSize> of_bytes(const std::vector<int64_t>& bytes) {
  std::vector<GradientSize> sizes;
  for (const int64_t each : bytes) {
    sizes.push_back({.bytes = each});
  }
  return sizes;
}

TEST(GradientBucketsTest, TheFirstBucketIsFullEarlier) {
  const BucketLimits limits{.first_bytes = 10, .bytes = 25};
  EXPECT_EQ(assign_buckets(of_bytes({8, 8, 8, 8, 16, 8}), {5, 4, 3, 2, 1, 0}, limits),
            (BucketMembers{{5, 4}, {3, 2, 1, 0}}));
  EXPECT_EQ(assign_buckets(of_bytes({30, 4, 30}), {0, 1, 2}, limits), (BucketMembers{{0}, {1, 2}}));
}

TEST(GradientBucketsTest, KindsDoNotMixAndBucketsComeAsTheirLastGradients) {
  const std::vector<GradientSize> sizes = {{8, 0}, {8, 1}, {8, 0}, {8, 1}, {8, 0}};
  const BucketLimits limits{.first_bytes = 16, .bytes = 16};
  EXPECT_EQ(assign_buckets(sizes, {0, 1, 2, 3, 4}, limits), (BucketMembers{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(assign_buckets(sizes, {1, 0, 2, 4, 3}, {.first_bytes = 100, .bytes = 100}),
            (BucketMembers{{0, 2, 4}, {1, 3}}));
}

TEST(GradientBucketsTest, TheLastArrivalCountsAndWhatHasNotComeIsLast) {
  EXPECT_EQ(arrival_order({3, 1, 3, 2}, 5), (std::vector<size_t>{1, 3, 2, 0, 4}));
  EXPECT_EQ(reverse_order(3), (std::vector<size_t>{2, 1, 0}));
}

TEST(GradientBucketsTest, BucketsGoInOrderOnceTheyAreComplete) {
  BucketProgress progress({{2, 1}, {0}});
  for (int round = 0; round < 2; ++round) {
    progress.begin();
    EXPECT_EQ(progress.next(), std::nullopt);
    progress.add(0);
    EXPECT_EQ(progress.next(), std::nullopt) << "the second bucket must not overtake the first";
    EXPECT_EQ(progress.missing(), (std::vector<size_t>{1, 2}));
    progress.add(1);
    progress.add(2);
    EXPECT_FALSE(progress.is_complete());
    EXPECT_EQ(progress.next(), 0u);
    EXPECT_EQ(progress.next(), 1u);
    EXPECT_EQ(progress.next(), std::nullopt);
    EXPECT_TRUE(progress.is_complete());
    EXPECT_TRUE(progress.missing().empty());
  }
}

}  // namespace
}  // namespace fsdp::plan
