#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

#include "fsdp_runtime/plan/box.h"
#include "fsdp_runtime/plan/group_layout.h"
#include "fsdp_runtime/plan/memory_plan.h"

namespace fsdp::plan {
namespace {

std::vector<ParamShape> random_params(std::mt19937& random) {
  std::vector<ParamShape> params(random() % 8);
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].fqn = "p" + std::to_string(i);
    params[i].shape.resize(1 + random() % 3);
    for (int64_t& size : params[i].shape) {
      const int64_t choices[] = {1, 2, 3, 5, 8, 17, 64, 96, 0};
      size = choices[random() % (random() % 16 == 0 ? 9 : 8)];
    }
  }
  return params;
}

// Numbers every parameter element, and cuts them up as `layout` says: one vector per rank.
std::vector<std::vector<int64_t>> shards_of_numbers(const GroupLayout& layout) {
  std::vector<std::vector<int64_t>> shards;
  for (int64_t rank = 0; rank < layout.ranks; ++rank) {
    std::vector<int64_t> shard(static_cast<size_t>(layout.shard_numel), -1);
    const std::vector<ParamSlice> slices = slices_of_rank(layout, rank);
    int64_t first = 0;
    for (size_t i = 0; i < slices.size(); ++i) {
      for (int64_t k = 0; k < slices[i].numel(); ++k) {
        shard[static_cast<size_t>(slices[i].shard_offset + k)] = first + slices[i].flat_begin + k;
      }
      first += layout.params[i].numel;
    }
    shards.push_back(std::move(shard));
  }
  return shards;
}

TEST(GroupLayoutTest, SlicesCoverEveryElementExactlyOnceAtAlignedPlaces) {
  std::mt19937 random(7);
  for (int round = 0; round < 600; ++round) {
    const std::vector<ParamShape> params = random_params(random);
    const int64_t ranks = 1 + round % 17;
    const GroupLayout layout = make_group_layout(params, ranks);
    ASSERT_EQ(layout.params.size(), params.size());
    EXPECT_EQ(layout.shard_numel % kAlignment, 0);
    int64_t total = 0;
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_EQ(layout.params[i].numel, numel_of(params[i].shape));
      EXPECT_EQ(layout.params[i].offset % kAlignment, 0);
      total += layout.params[i].numel;
    }
    std::vector<int64_t> seen;
    for (const auto& shard : shards_of_numbers(layout)) {
      std::copy_if(shard.begin(), shard.end(), std::back_inserter(seen),
                   [](int64_t v) { return v >= 0; });
    }
    std::vector<int64_t> all(static_cast<size_t>(total));
    std::iota(all.begin(), all.end(), 0);
    ASSERT_EQ(seen, all) << "round " << round;
  }
}

TEST(GroupLayoutTest, BoxesOfAllRanksTileEveryParameter) {
  const std::vector<ParamShape> params = {
      {"a", {7, 5}}, {"b", {3}}, {"c", {2, 3, 4}}, {"d", {0, 4}}};
  for (int64_t ranks = 1; ranks <= 17; ++ranks) {
    const GroupLayout layout = make_group_layout(params, ranks);
    std::vector<std::vector<int>> holders;
    for (const ParamShape& param : params) {
      holders.emplace_back(static_cast<size_t>(numel_of(param.shape)), 0);
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const std::vector<Shard> shards = shards_of_rank(layout, params, rank, {"dp_shard"});
      const std::vector<ParamSlice> slices = slices_of_rank(layout, rank);
      ASSERT_EQ(shards.size(), params.size());
      for (size_t i = 0; i < params.size(); ++i) {
        EXPECT_EQ(shards[i].fqn, params[i].fqn);
        EXPECT_EQ(shards[i].global_shape, params[i].shape);
        EXPECT_EQ(shards[i].mesh_axes, std::vector<std::string>{"dp_shard"});
        EXPECT_EQ(total_numel(shards[i].boxes), slices[i].numel());
        for (const Box& box : shards[i].boxes) {
          for_each_run(box, whole_box(params[i].shape), box,
                       [&](int64_t from, int64_t, int64_t numel) {
                         for (int64_t k = from; k < from + numel; ++k) {
                           ++holders[i][static_cast<size_t>(k)];
                         }
                       });
        }
      }
    }
    for (const std::vector<int>& counts : holders) {
      EXPECT_THAT(counts, ::testing::Each(1)) << ranks << " ranks";
    }
  }
}

TEST(GroupLayoutTest, PaddingIsWhatNoParameterCoversAndIsBounded) {
  std::mt19937 random(8);
  for (int round = 0; round < 600; ++round) {
    const std::vector<ParamShape> params = random_params(random);
    const int64_t ranks = 1 + round % 17;
    const GroupLayout layout = make_group_layout(params, ranks);
    int64_t covered = 0;
    int64_t end = 0;
    for (const ParamPlacement& param : layout.params) {
      covered += param.numel;
      EXPECT_GE(param.offset, end) << "parameters overlap or are out of order";
      end = param.offset + param.numel;
    }
    EXPECT_LE(end, layout.numel());
    int64_t padding = 0;
    for (const Range& gap : padding_of(layout)) {
      EXPECT_LT(gap.begin, gap.end);
      padding += gap.end - gap.begin;
    }
    EXPECT_EQ(covered + padding, layout.numel());
    int64_t padding_of_ranks = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (const Range& gap : padding_of_rank(layout, rank)) {
        EXPECT_GE(gap.begin, 0);
        EXPECT_LE(gap.end, layout.shard_numel);
        padding_of_ranks += gap.end - gap.begin;
      }
    }
    EXPECT_EQ(padding_of_ranks, padding);
    const int64_t plain =
        covered + (kAlignment - 1) * static_cast<int64_t>(params.size()) + ranks * kAlignment;
    EXPECT_LE(layout.numel(), plain + plain / kRowPaddingDivisor);
  }
}

TEST(GroupLayoutTest, BigMatricesAreCutBetweenRows) {
  const std::vector<ParamShape> params = {
      {"q", {2048, 2048}}, {"norm", {2048}}, {"up", {5632, 2048}}, {"down", {2048, 5632}}};
  for (int64_t ranks : {2, 3, 8, 16}) {
    const GroupLayout layout = make_group_layout(params, ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const std::vector<ParamSlice> slices = slices_of_rank(layout, rank);
      for (size_t i = 0; i < params.size(); ++i) {
        if (params[i].shape.size() == 2) {
          EXPECT_EQ(slices[i].flat_begin % params[i].shape[1], 0) << params[i].fqn;
        }
      }
    }
  }
}

TEST(GroupLayoutTest, RowsAreGivenUpWhereTheyCostTooMuch) {
  const GroupLayout layout = make_group_layout({{"wide", {3, 1009}}}, 4);
  EXPECT_LT(layout.numel(), 3 * 1009 + 5 * kAlignment);
}

TEST(GroupLayoutTest, ParametersSmallerThanTheWorldLeaveRanksEmpty) {
  const GroupLayout layout = make_group_layout({{"scale", {3}}}, 17);
  EXPECT_EQ(slices_of_rank(layout, 0)[0], (ParamSlice{0, 3, 0}));
  for (int64_t rank = 1; rank < 17; ++rank) {
    EXPECT_EQ(slices_of_rank(layout, rank)[0].numel(), 0);
  }
}

TEST(GroupLayoutTest, RejectsNonsense) {
  EXPECT_THROW(make_group_layout({}, 0), std::invalid_argument);
  EXPECT_THROW(make_group_layout({{"p", {-1}}}, 1), std::invalid_argument);
  EXPECT_THROW(slices_of_rank(make_group_layout({}, 2), 2), std::invalid_argument);
}

TEST(MemoryPlanTest, EqualBlocksShareTwoSlotsAndTheRootHasItsOwn) {
  std::vector<GroupMemory> groups(5);
  groups[0] = {.numel = 100, .ranks = 2, .stays_gathered = true};
  for (size_t i = 1; i < groups.size(); ++i) {
    groups[i] = {.unit = static_cast<int64_t>(i), .numel = 40, .ranks = 2, .compute_bytes = 2};
  }
  const MemoryPlan plan = plan_memory(groups);
  EXPECT_EQ(plan.shard_bytes, (100 + 4 * 40) / 2 * 4);
  EXPECT_EQ(plan.optimizer_bytes, 2 * plan.shard_bytes);
  EXPECT_EQ(plan.parameter_slot_bytes, 100 * 4 + 2 * 40 * 2);
  EXPECT_EQ(plan.gradient_slot_bytes, 100 * 4 + 2 * 40 * 4);
}

TEST(MemoryPlanTest, ReducedGradientsThatAreNotTheGradientHaveSlotsOfTheSizeOfAShard) {
  std::vector<GroupMemory> groups(5);
  for (GroupMemory& group : groups) {
    group = {.numel = 40, .ranks = 2, .reduce_bytes = 2, .reduces_to_slot = true};
  }
  EXPECT_EQ(plan_memory(groups).gradient_slot_bytes, 2 * 40 * 2 + 3 * 20 * 2);
  EXPECT_EQ(plan_memory(groups).gradient_bytes, 5 * 20 * 4);
  groups[0].keeps_row_sum = true;
  EXPECT_EQ(plan_memory(groups).gradient_bytes, 5 * 20 * 4 + 20 * 2);
}

TEST(MemoryPlanTest, ReducedGradientsOfARowOfOneRankStayWhereTheyAre) {
  const MemoryPlan plan = plan_memory({{.numel = 40, .reduce_bytes = 2, .reduces_to_slot = true}});
  EXPECT_EQ(plan.gradient_slot_bytes, 40 * 2);
}

TEST(MemoryPlanTest, EachGroupIsDividedByTheRanksOfItsOwnMesh) {
  const GroupMemory on_two = {.numel = 40, .ranks = 2, .reduces_to_slot = true};
  const GroupMemory on_four = {.unit = 1, .numel = 40, .ranks = 4, .reduces_to_slot = true};
  const std::vector<std::vector<GroupMemory>> orders = {{on_two, on_four}, {on_four, on_two}};
  for (const std::vector<GroupMemory>& groups : orders) {
    const MemoryPlan plan = plan_memory(groups);
    EXPECT_EQ(plan.shard_bytes, (20 + 10) * 4);
    EXPECT_EQ(plan.gradient_bytes, (20 + 10) * 4);
    EXPECT_EQ(plan.optimizer_bytes, 2 * (20 + 10) * 4);
    EXPECT_EQ(plan.gradient_slot_bytes, (2 * 40 + 20 + 10) * 4);  // a shard's slot of each size
  }
}

TEST(MemoryPlanTest, NeighboursNeedTheSlotsOfAllTheirGroupsAtOnce) {
  // Each unit has a large group and a small one, of other dtypes; the last has two large ones.
  std::vector<GroupMemory> groups;
  for (int64_t unit = 0; unit < 3; ++unit) {
    groups.push_back({.unit = unit, .numel = 40, .ranks = 2});
    groups.push_back({.unit = unit, .numel = 8, .ranks = 2});
  }
  EXPECT_EQ(plan_memory(groups).parameter_slot_bytes, (2 * 40 + 2 * 8) * 4);
  groups.back().numel = 40;
  EXPECT_EQ(plan_memory(groups).parameter_slot_bytes, (3 * 40 + 2 * 8) * 4);
}

TEST(MemoryPlanTest, WhatStaysInPlaceNeedsNoSlot) {
  const MemoryPlan plan =
      plan_memory({{.numel = 64, .has_parameters_in_place = true, .has_gradients_in_place = true}});
  EXPECT_EQ(plan.peak_bytes(), (1 + 1 + 2) * 64 * 4);
  EXPECT_EQ(plan_memory({{.numel = 64, .has_gradients_in_place = true}}).peak_bytes(),
            plan.peak_bytes() + 64 * 4);
}

TEST(MemoryPlanTest, FrozenGroupsNeedNoGradientMemory) {
  const MemoryPlan plan = plan_memory({{.numel = 64, .is_trainable = false}});
  EXPECT_EQ(plan.gradient_bytes + plan.gradient_slot_bytes + plan.optimizer_bytes, 0);
}

}  // namespace
}  // namespace fsdp::plan
