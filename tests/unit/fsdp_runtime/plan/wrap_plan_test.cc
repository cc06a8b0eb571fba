#include "fsdp_runtime/plan/wrap_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fsdp::plan {
namespace {

/// A root with 5 parameters of its own and a list, which has no forward, of two blocks; each has 10
/// and two layers of 40.
std::vector<WrapNode> two_blocks() {
  std::vector<WrapNode> tree(8);
  size_t id = 0;
  const auto set = [&](size_t node, const std::string& name, int64_t numel,
                       std::vector<size_t> children, bool has_forward = true) {
    tree[node] = {name, {}, std::move(children), has_forward};
    if (numel > 0) {
      tree[node].params.push_back({"weight", id++, numel});
    }
  };
  set(0, "", 5, {1});
  set(1, "list", 0, {2, 5}, /*has_forward=*/false);
  set(2, "list.0", 10, {3, 4});
  set(3, "list.0.a", 40, {});
  set(4, "list.0.b", 40, {});
  set(5, "list.1", 10, {6, 7});
  set(6, "list.1.a", 40, {});
  set(7, "list.1.b", 40, {});
  return tree;
}

WrapRule from_size(int64_t least) {
  return {.descends = [least](size_t, int64_t numel) { return numel >= least; },
          .wraps = [least](size_t, int64_t numel) { return numel >= least; }};
}

WrapRule only(std::vector<size_t> nodes) {
  return {.descends = [](size_t, int64_t) { return true; },
          .wraps =
              [nodes = std::move(nodes)](size_t node, int64_t) {
                return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
              }};
}

TEST(WrapPlanTest, NestedUnitsComeFirstAndTheRootTakesTheRest) {
  const std::vector<WrapUnit> expected = {{3, 40}, {2, 50}, {0, 95}};
  EXPECT_EQ(choose_units(two_blocks(), only({2, 3})), expected);
}

TEST(WrapPlanTest, WhatHasNoForwardIsNoUnitButItsChildrenAre) {
  const WrapRule all{.descends = [](size_t, int64_t) { return true; },
                     .wraps = [](size_t, int64_t) { return true; }};
  const std::vector<WrapUnit> expected = {{3, 40}, {4, 40}, {2, 10}, {6, 40},
                                          {7, 40}, {5, 10}, {0, 5}};
  EXPECT_EQ(choose_units(two_blocks(), all), expected);
}

TEST(WrapPlanTest, SizeCountsWhatUnitsBelowHaveLeft) {
  // A block has 90; without its layers, of 40 each, 10.
  EXPECT_EQ(choose_units(two_blocks(), from_size(90)),
            (std::vector<WrapUnit>{{2, 90}, {5, 90}, {0, 5}}));
  EXPECT_EQ(choose_units(two_blocks(), from_size(40)),
            (std::vector<WrapUnit>{{3, 40}, {4, 40}, {6, 40}, {7, 40}, {0, 25}}));
  EXPECT_EQ(choose_units(two_blocks(), from_size(91)), (std::vector<WrapUnit>{{0, 185}}));
}

TEST(WrapPlanTest, NothingIsAskedBelowAModuleThatIsALeaf) {
  WrapRule rule = only({3, 5, 6});
  rule.descends = [](size_t node, int64_t) { return node != 5; };
  EXPECT_EQ(choose_units(two_blocks(), rule), (std::vector<WrapUnit>{{3, 40}, {0, 145}}));
}

TEST(WrapPlanTest, ASharedParameterCountsOnce) {
  std::vector<WrapNode> tree = two_blocks();
  tree[3].params[0].id = tree[4].params[0].id;
  EXPECT_EQ(choose_units(tree, only({2})), (std::vector<WrapUnit>{{2, 50}, {0, 95}}));
  EXPECT_TRUE(split_params(tree, choose_units(tree, only({2}))).empty());
}

TEST(WrapPlanTest, ASharedParameterOfTwoUnitsIsNamedInBoth) {
  std::vector<WrapNode> tree = two_blocks();
  tree[6].params[0].id = tree[3].params[0].id;
  const std::vector<SplitParam> between = split_params(tree, choose_units(tree, only({3, 5})));
  ASSERT_EQ(between.size(), 1u);
  EXPECT_EQ(between[0].unit, 3u);
  EXPECT_EQ(between[0].other, 5u);
  EXPECT_EQ(between[0].name, "list.0.a.weight");
  EXPECT_EQ(between[0].other_name, "list.1.a.weight");
  // With the root it is the same.
  EXPECT_EQ(split_params(tree, choose_units(tree, only({2}))).size(), 1u);
  EXPECT_TRUE(split_params(tree, choose_units(tree, only({}))).empty());
}

}  // namespace
}  // namespace fsdp::plan
