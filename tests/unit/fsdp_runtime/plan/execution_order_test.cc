#include "fsdp_runtime/plan/execution_order.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::plan {
namespace {

using Answers = std::vector<std::optional<int64_t>>;

std::optional<int64_t> next_of(const Upcoming& upcoming) {
  return upcoming.size() > 0 ? std::optional(upcoming[0]) : std::nullopt;
}
std::optional<int64_t> next_of(std::optional<int64_t> next) { return next; }

template <typename Order>
Answers forward(Order& order, const std::vector<int64_t>& units) {
  order.begin_forward();
  Answers answers;
  for (int64_t unit : units) {
    answers.push_back(next_of(order.on_forward(unit)));
    order.on_forward_end(unit);
  }
  return answers;
}

template <typename Order>
Answers backward(Order& order, const std::vector<int64_t>& units) {
  order.begin_backward();
  Answers answers;
  for (int64_t unit : units) {
    answers.push_back(next_of(order.on_backward(unit)));
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

TEST(ExecutionOrderTest, UnitAroundOthersIsFollowedByTheLastOfThemInBackward) {
  ExecutionOrder order;
  for (int step = 0; step < 2; ++step) {
    order.begin_forward();
    Answers answers;
    for (const int64_t unit : {0, 1, 2, 3}) {
      answers.push_back(next_of(order.on_forward(unit)));
      if (unit != 0 && unit != 2) {
        order.on_forward_end(unit);
      }
    }
    order.on_forward_end(2);  // 3 runs inside 2
    order.on_forward_end(0);
    if (step == 1) {
      EXPECT_EQ(answers, (Answers{1, 2, 3, std::nullopt}));
    }
    EXPECT_EQ(backward(order, {0, 2, 3, 1}), (Answers{2, 3, 1, std::nullopt}));
  }
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

TEST(ExecutionOrderTest, TellsAllThatIsToComeInOrder) {
  const auto all_of = [](const Upcoming& upcoming) {
    std::vector<int64_t> units;
    for (size_t i = 0; i < upcoming.size(); ++i) {
      units.push_back(upcoming[i]);
    }
    return units;
  };
  ExecutionOrder order;
  forward(order, {0, 1, 2, 3});
  order.begin_backward();
  EXPECT_EQ(all_of(order.on_backward(3)), (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(all_of(order.on_backward(1)), (std::vector<int64_t>{0}));
  order.begin_forward();
  EXPECT_EQ(all_of(order.on_forward(0)), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(all_of(order.on_forward(2)), (std::vector<int64_t>{3}));
  EXPECT_EQ(all_of(order.on_forward(3)), (std::vector<int64_t>{}));
}

TEST(ExecutionOrderTest, UnknownUnitInBackwardHasNoPrediction) {
  ExecutionOrder order;
  forward(order, {0, 1});
  EXPECT_EQ(backward(order, {9}), (Answers{std::nullopt}));
}

/// What the header promises, worked out anew for each question from all calls made so far. Slow,
/// and without any state that one question could leave to the next.
class Replay {
 public:
  void begin_forward() { forwards_.emplace_back(); }
  std::optional<int64_t> on_forward(int64_t unit) {
    forwards_.back().push_back(unit);
    backwards_.clear();
    if (forwards_.size() < 2) {
      return std::nullopt;
    }
    // Each unit is matched with the earliest use of it behind the match before; a unit that has
    // none left has left the predicted path.
    const std::vector<int64_t>& predicted = forwards_[forwards_.size() - 2];
    size_t behind = 0;
    bool is_on_path = false;
    for (const int64_t ran : forwards_.back()) {
      size_t match = behind;
      while (match < predicted.size() && predicted[match] != ran) {
        ++match;
      }
      is_on_path = match < predicted.size();
      behind = is_on_path ? match + 1 : behind;
    }
    return is_on_path && behind < predicted.size() ? std::optional(predicted[behind])
                                                   : std::nullopt;
  }
  void on_forward_end(int64_t) {}
  void begin_backward() { backwards_.clear(); }
  std::optional<int64_t> on_backward(int64_t unit) {
    backwards_.push_back(unit);
    const std::vector<int64_t>& ran = forwards_.back();
    // Each backward belongs to the latest use before that of the backward before it, else, where a
    // second pass begins, to the latest of all; a unit that never ran changes nothing.
    size_t ahead_of = ran.size();
    std::optional<size_t> use;
    for (const int64_t back : backwards_) {
      use = latest_use(ran, back, ahead_of);
      use = use ? use : latest_use(ran, back, ran.size());
      ahead_of = use.value_or(ahead_of);
    }
    return use && *use > 0 ? std::optional(ran[*use - 1]) : std::nullopt;
  }

 private:
  static std::optional<size_t> latest_use(const std::vector<int64_t>& ran, int64_t unit,
                                          size_t end) {
    std::optional<size_t> latest;
    for (size_t i = 0; i < end; ++i) {
      if (ran[i] == unit) {
        latest = i;
      }
    }
    return latest;
  }

  std::vector<std::vector<int64_t>> forwards_;
  std::vector<int64_t> backwards_;
};

/// All sequences of one to `longest` of the units 0, 1 and 2.
std::vector<std::vector<int64_t>> all_sequences(size_t longest) {
  std::vector<std::vector<int64_t>> all = {{}};
  for (size_t first = 0; all[first].size() < longest; ++first) {
    for (int64_t unit = 0; unit < 3; ++unit) {
      all.push_back(all[first]);
      all.back().push_back(unit);
    }
  }
  all.erase(all.begin());
  return all;
}

TEST(ExecutionOrderTest, EveryShortHistoryIsAnsweredAsByReplayingIt) {
  const std::vector<std::vector<int64_t>> sequences = all_sequences(4);
  ASSERT_EQ(sequences.size(), 3u + 9 + 27 + 81);
  for (const std::vector<int64_t>& first : sequences) {
    for (const std::vector<int64_t>& second : sequences) {
      // The second sequence is a forward that may leave the path of the first, and then a backward
      // in an order of its own: what autograd runs need not be the forward reversed.
      ExecutionOrder order;
      Replay replay;
      ASSERT_EQ(forward(order, first), forward(replay, first));
      ASSERT_EQ(backward(order, second), backward(replay, second))
          << ::testing::PrintToString(second) << " after " << ::testing::PrintToString(first);
      ASSERT_EQ(forward(order, second), forward(replay, second))
          << ::testing::PrintToString(second) << " after " << ::testing::PrintToString(first);
      ASSERT_EQ(backward(order, first), backward(replay, first))
          << ::testing::PrintToString(first) << " after " << ::testing::PrintToString(second);
    }
  }
}

TEST(ExecutionOrderTest, AStepLikeTheOneBeforeIsPredictedWithoutAMistake) {
  for (const std::vector<int64_t>& units : all_sequences(6)) {
    ExecutionOrder order;
    forward(order, units);
    const std::vector<int64_t> reversed(units.rbegin(), units.rend());
    backward(order, reversed);
    Answers next(units.begin() + 1, units.end());
    next.push_back(std::nullopt);
    ASSERT_EQ(forward(order, units), next) << ::testing::PrintToString(units);
    Answers before(reversed.begin() + 1, reversed.end());
    before.push_back(std::nullopt);
    ASSERT_EQ(backward(order, reversed), before) << ::testing::PrintToString(units);
  }
}

}  // namespace
}  // namespace fsdp::plan
