#include "fsdp_runtime/src/optim/step_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StepCountersTest, WhoTakesPartTogetherNeedsNoFurtherCounter) {
  std::vector<size_t> counter_of = {0, 0, 1};
  EXPECT_THAT(split_counters(counter_of, {1, 1, 1}, 2), IsEmpty());
  EXPECT_THAT(split_counters(counter_of, {1, 1, 0}, 2), IsEmpty());
  EXPECT_THAT(split_counters(counter_of, {0, 0, 0}, 2), IsEmpty());
  EXPECT_THAT(counter_of, ElementsAre(0, 0, 1));
}

TEST(StepCountersTest, WhoLeavesOthersBehindGoesOnWithACopy) {
  std::vector<size_t> counter_of = {0, 1, 0, 1, 0};
  EXPECT_THAT(split_counters(counter_of, {1, 0, 0, 1, 1}, 2), ElementsAre(0, 1));
  EXPECT_THAT(counter_of, ElementsAre(2, 1, 0, 3, 2));
}

// Whatever takes part in whatever order: each parameter's counter says how often it did.
TEST(StepCountersTest, CountWhatEachParameterHasDone) {
  constexpr size_t kParams = 9;
  std::minstd_rand random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<size_t> counter_of(kParams, 0);
    std::vector<int64_t> counters = {0};
    std::vector<int64_t> expected(kParams, 0);
    for (int step = 0; step < 30; ++step) {
      std::vector<uint8_t> takes_part(kParams);
      for (size_t i = 0; i < kParams; ++i) {
        takes_part[i] = random() % 3 == 0 ? 0 : 1;
        expected[i] += takes_part[i];
      }
      for (const size_t from : split_counters(counter_of, takes_part, counters.size())) {
        counters.push_back(counters[from]);
      }
      std::vector<uint8_t> counts(counters.size(), 0);
      for (size_t i = 0; i < kParams; ++i) {
        counts[counter_of[i]] |= takes_part[i];
      }
      for (size_t c = 0; c < counters.size(); ++c) {
        counters[c] += counts[c];
      }
      for (size_t i = 0; i < kParams; ++i) {
        ASSERT_EQ(counters[counter_of[i]], expected[i]) << "parameter " << i << ", step " << step;
      }
    }
    EXPECT_LE(counters.size(), kParams);
  }
}

}  // namespace
}  // namespace fsdp
