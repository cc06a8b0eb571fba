#include "fsdp_runtime/plan/reshard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace fsdp::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReshardPlanTest, CountsTheUnitThatComputesAndTheNext) {
  EXPECT_EQ(most_gathered({}, {}), 0);
  EXPECT_EQ(most_gathered({5}, {false}), 5);
  EXPECT_EQ(most_gathered({5, 3, 9}, {false, false, false}), 12);
  EXPECT_EQ(most_gathered({5, 3, 9}, {true, false, false}), 17);
  EXPECT_EQ(most_gathered({5, 3, 9}, {true, true, true}), 17);
}

TEST(ReshardPlanTest, KeepsTheLastUnits) {
  EXPECT_THAT(units_to_keep({4, 4, 4, 4}, 7), ElementsAre(false, false, false, false));
  EXPECT_THAT(units_to_keep({4, 4, 4, 4}, 8), ElementsAre(false, false, true, true))
      << "the two with which backward begins";
  EXPECT_THAT(units_to_keep({4, 4, 4, 4}, 12), ElementsAre(false, true, true, true));
  EXPECT_THAT(units_to_keep({4, 4, 4, 4}, 16), ElementsAre(true, true, true, true));
}

TEST(ReshardPlanTest, FillsWhatIsLeftWithSmallerUnits) {
  EXPECT_THAT(units_to_keep({1, 8, 8, 2}, 17), ElementsAre(true, false, true, true));
}

TEST(ReshardPlanTest, WhatTakesNoMemoryIsKept) {
  EXPECT_THAT(units_to_keep({0, 0, 0}, 0), ElementsAre(true, true, true));
  EXPECT_THAT(units_to_keep({}, 7), IsEmpty());
}

TEST(ReshardPlanTest, NeverTakesMoreThanTheBudgetUnlessNothingIsKept) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> bytes(random() % 9);
    for (int64_t& each : bytes) {
      each = static_cast<int64_t>(random() % 20);
    }
    const auto budget = static_cast<int64_t>(random() % 80);
    const std::vector<bool> kept = units_to_keep(bytes, budget);
    const std::vector<bool> none(bytes.size(), false);
    if (most_gathered(bytes, none) <= budget) {
      ASSERT_LE(most_gathered(bytes, kept), budget);
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::vector<bool> more = kept;
      more[i] = true;
      ASSERT_TRUE(kept[i] || most_gathered(bytes, more) > budget) << "another one would fit";
    }
  }
}

}  // namespace
}  // namespace fsdp::plan
