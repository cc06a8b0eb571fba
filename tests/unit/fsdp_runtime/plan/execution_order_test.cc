#include "fsdp_runtime/plan/execution_order.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdp::plan {
namespace {

using Answers = std::vector<std::optional<int64_t>>;

Answers forward(ExecutionOrder& order, const std::vector<int64_t>& units) {
  order.begin_forward();
  Answers answers;
  for (int64_t unit : units) {
    answers.push_back(order.on_forward(unit));
  }
  return answers;
}

Answers backward(ExecutionOrder& order, const std::vector<int64_t>& units) {
  order.begin_backward();
  Answers answers;
  for (int64_t unit : units) {
    answers.push_back(order.on_backward(unit));
  }
  return answers;
}

TEST(ExecutionOrderTest, FirstForwardPredictsNothingTheSecondTheNextUnit) {
  ExecutionOrder order;
  EXPECT_EQ(forward(order, {0, 1, 2}), (Answers{std::nullopt, std::nullopt, std::nullopt}));
  EXPECT_EQ(forward(order, {0, 1, 2}), (Answers{1, 2, std::nullopt}));
}

TEST(ExecutionOrderTest, BackwardPredictsTheUnitBefore) {
  ExecutionOrder order;
  forward(order, {0, 1, 2});
  EXPECT_EQ(backward(order, {0, 2, 1}), (Answers{std::nullopt, 1, 0}));
}

TEST(ExecutionOrderTest, UnitUsedTwiceIsFoundAtItsLaterUseFirst) {
  ExecutionOrder order;
  forward(order, {0, 1, 2, 1});
  EXPECT_EQ(backward(order, {1, 2, 1}), (Answers{2, 1, 0}));
}

TEST(ExecutionOrderTest, TwoForwardsBeforeTwoBackwards) {
  ExecutionOrder order;
  forward(order, {0, 1, 2});
  forward(order, {0, 1, 2});
  EXPECT_EQ(backward(order, {2, 1, 2, 1}), (Answers{1, 0, 1, 0}));
}

TEST(ExecutionOrderTest, LeavingThePathCostsOnlyThePrediction) {
  ExecutionOrder order;
  forward(order, {0, 1, 2, 3});
  EXPECT_EQ(forward(order, {0, 2, 7, 3}), (Answers{1, 3, std::nullopt, std::nullopt}));
  EXPECT_EQ(forward(order, {0, 2, 7, 3}), (Answers{2, 7, 3, std::nullopt}));
}

TEST(ExecutionOrderTest, UnknownUnitInBackwardHasNoPrediction) {
  ExecutionOrder order;
  forward(order, {0, 1});
  EXPECT_EQ(backward(order, {9}), (Answers{std::nullopt}));
}

TEST(ExecutionOrderTest, TheSameCallsGiveTheSameAnswersOnEveryRank) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::vector<Answers> by_rank;
    for (int rank = 0; rank < 5; ++rank) {
      std::mt19937 random(seed);
      ExecutionOrder order;
      Answers all;
      for (int step = 0; step < 5; ++step) {
        std::vector<int64_t> units(1 + random() % 7);
        for (int64_t& unit : units) {
          unit = random() % 4;
        }
        const Answers ahead = forward(order, units);
        const Answers back = backward(order, {units.rbegin(), units.rend()});
        all.insert(all.end(), ahead.begin(), ahead.end());
        all.insert(all.end(), back.begin(), back.end());
      }
      by_rank.push_back(std::move(all));
    }
    for (const Answers& answers : by_rank) {
      EXPECT_EQ(answers, by_rank.front());
    }
  }
}

}  // namespace
}  // namespace fsdp::plan
