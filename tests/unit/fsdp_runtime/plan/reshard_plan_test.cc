#include "fsdp_runtime/plan/reshard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace fsdp::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// One behind the other, none in another one.
std::vector<UnitToGather> flat(const std::vector<int64_t>& bytes) {
  std::vector<UnitToGather> units;
  for (const int64_t each : bytes) {
    units.push_back({.bytes = each});
  }
  return units;
}

TEST(ReshardPlanTest, CountsTheUnitThatComputesAndTheNext) {
  EXPECT_EQ(most_gathered({}, {}), 0);
  EXPECT_EQ(most_gathered(flat({5}), {false}), 5);
  EXPECT_EQ(most_gathered(flat({5, 3, 9}), {false, false, false}), 12);
  EXPECT_EQ(most_gathered(flat({5, 3, 9}), {true, false, false}), 17);
  EXPECT_EQ(most_gathered(flat({5, 3, 9}), {true, true, true}), 17);
}

TEST(ReshardPlanTest, CountsTheUnitsAroundTheOneThatComputes) {
  const std::vector<UnitToGather> root = {{.bytes = 100}, {5, 0}, {3, 0}, {9, 0}};
  EXPECT_EQ(most_gathered(root, {false, false, false, false}), 112);
  EXPECT_EQ(most_gathered(root, {true, false, false, false}), 112) << "it is gathered all the same";
  EXPECT_EQ(most_gathered(root, {false, true, false, false}), 117);
  // A unit of 7 with two in it, and one of 1 before and 2 behind it.
  const std::vector<UnitToGather> nested = {{.bytes = 100}, {1, 0},  {7, 0},
                                            {20, 2},        {30, 2}, {2, 0}};
  EXPECT_EQ(most_gathered(nested, std::vector<bool>(6, false)), 157) << "100 + 7 + 20 + 30";
  EXPECT_EQ(most_gathered(nested, {false, true, false, false, false, false}), 158);
  const std::vector<UnitToGather> late = {{.bytes = 0}, {50, 0}, {1, 0}, {20, 2}};
  EXPECT_EQ(most_gathered(late, {false, false, false, false}), 71)
      << "in backward 50 is the next one behind 20, which runs in 1";
}

TEST(ReshardPlanTest, CountsWhatParametersAreCopiedOutOf) {
  const UnitToGather copied{.bytes = 5, .copied = 5, .copied_from = 6};
  EXPECT_EQ(most_gathered({copied}, {false}), 11);
  EXPECT_EQ(most_gathered({copied, copied}, {false, false}), 17) << "and the next one in flight";
  EXPECT_EQ(most_gathered({copied, copied, copied}, {true, false, false}), 22);
  const UnitToGather partly{.bytes = 9, .copied = 5, .copied_from = 6};
  EXPECT_EQ(most_gathered({copied, partly}, {false, false}), 5 + 6 + 4 + 6);
  const UnitToGather from_window{.bytes = 5, .copied = 5, .copied_from = 0};
  EXPECT_EQ(most_gathered({from_window, from_window}, {false, false}), 5);
}

TEST(ReshardPlanTest, KeepsTheLastUnits) {
  EXPECT_THAT(units_to_keep(flat({4, 4, 4, 4}), 7), ElementsAre(false, false, false, false));
  EXPECT_THAT(units_to_keep(flat({4, 4, 4, 4}), 8), ElementsAre(false, false, true, true))
      << "the two with which backward begins";
  EXPECT_THAT(units_to_keep(flat({4, 4, 4, 4}), 12), ElementsAre(false, true, true, true));
  EXPECT_THAT(units_to_keep(flat({4, 4, 4, 4}), 16), ElementsAre(true, true, true, true));
}

TEST(ReshardPlanTest, FillsWhatIsLeftWithSmallerUnits) {
  EXPECT_THAT(units_to_keep(flat({1, 8, 8, 2}), 17), ElementsAre(true, false, true, true));
}

TEST(ReshardPlanTest, WhatTakesNoMemoryIsKept) {
  EXPECT_THAT(units_to_keep(flat({0, 0, 0}), 0), ElementsAre(true, true, true));
  EXPECT_THAT(units_to_keep(flat({}), 7), IsEmpty());
}

/// What a step takes, unit by unit, as the engine gathers them.
class Step {
 public:
  Step(const std::vector<UnitToGather>& units, const std::vector<bool>& kept)
      : units_(units), kept_(kept), parameters_(units.size(), Parameters::kSharded) {}
  int64_t most() {
    for (size_t i = 0; i < units_.size(); ++i) {
      if (!units_[i].around) {
        forward(i);
      }
    }
    for (size_t i = units_.size(); i-- > 0;) {
      if (!units_[i].around) {
        backward(i);
      }
    }
    return most_;
  }

 private:
  enum class Parameters { kSharded, kInFlight, kCopied, kWhole };

  int64_t bytes_of(size_t i) const {
    const UnitToGather& unit = units_[i];
    switch (parameters_[i]) {
      case Parameters::kSharded:
        return 0;
      case Parameters::kInFlight:
        return unit.bytes - unit.copied + unit.copied_from;
      case Parameters::kCopied:
        return unit.bytes + unit.copied_from;
      case Parameters::kWhole:
        return unit.bytes;
    }
    return 0;
  }
  void set(size_t i, Parameters to) {
    parameters_[i] = to;
    int64_t bytes = 0;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      bytes += bytes_of(unit);
    }
    most_ = std::max(most_, bytes);
  }
  void start(size_t i) {
    if (parameters_[i] == Parameters::kSharded) {
      set(i, Parameters::kInFlight);
    }
  }
  void wait(size_t i) {
    if (parameters_[i] == Parameters::kInFlight) {
      set(i, Parameters::kCopied);
      set(i, Parameters::kWhole);
    }
  }
  void forward(size_t i) {
    start(i);
    if (i + 1 < units_.size()) {
      start(i + 1);
    }
    wait(i);
    for (size_t inner = i + 1; inner < units_.size(); ++inner) {
      if (units_[inner].around == i) {
        forward(inner);
      }
    }
    if (!kept_[i]) {
      parameters_[i] = Parameters::kSharded;
    }
    ended_.push_back(i);
  }
  void backward(size_t i) {
    start(i);
    while (!ended_.empty() && ended_.back() != i) {
      ended_.pop_back();
    }
    ended_.pop_back();
    if (!ended_.empty()) {
      start(ended_.back());
    }
    wait(i);
    for (size_t inner = units_.size(); inner-- > i + 1;) {
      if (units_[inner].around == i) {
        backward(inner);
      }
    }
    parameters_[i] = Parameters::kSharded;
  }

  const std::vector<UnitToGather>& units_;
  const std::vector<bool>& kept_;
  std::vector<Parameters> parameters_;
  std::vector<size_t> ended_;  // in forward, and not begun in backward
  int64_t most_ = 0;
};

/// Each in one of those that are open when it comes, or in none.
std::vector<UnitToGather> random_units(std::mt19937& random) {
  std::vector<UnitToGather> units(random() % 9);
  std::vector<size_t> open;
  for (size_t i = 0; i < units.size(); ++i) {
    units[i].bytes = static_cast<int64_t>(random() % 20);
    if (random() % 2 == 0) {
      units[i].copied = static_cast<int64_t>(random() % 20) % (units[i].bytes + 1);
      units[i].copied_from = static_cast<int64_t>(random() % 20);
    }
    open.resize(random() % (open.size() + 1));
    units[i].around = open.empty() ? std::nullopt : std::make_optional(open.back());
    open.push_back(i);
  }
  return units;
}

TEST(ReshardPlanTest, NeverTakesMoreThanTheBudgetUnlessNothingIsKept) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<UnitToGather> units = random_units(random);
    const auto budget = static_cast<int64_t>(random() % 80);
    const std::vector<bool> kept = units_to_keep(units, budget);
    ASSERT_EQ(most_gathered(units, kept), Step(units, kept).most());
    if (most_gathered(units, std::vector<bool>(units.size(), false)) <= budget) {
      ASSERT_LE(most_gathered(units, kept), budget);
    }
    for (size_t i = 0; i < units.size(); ++i) {
      std::vector<bool> more = kept;
      more[i] = true;
      ASSERT_TRUE(kept[i] || most_gathered(units, more) > budget) << "another one would fit";
    }
  }
}

}  // namespace
}  // namespace fsdp::plan
