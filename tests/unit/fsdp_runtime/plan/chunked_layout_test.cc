// Layouts in which each parameter is divided along a dimension.

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

struct ChunkedCase {
  std::vector<ParamShape> params;
  std::vector<int64_t> dims;
  int64_t ranks = 1;
};

/// Along dimension 0 of any size; along others of sizes that `ranks` divides.
ChunkedCase random_case(std::mt19937& random) {
  ChunkedCase drawn;
  drawn.ranks = 1 + static_cast<int64_t>(random() % 9);
  const size_t count = 1 + random() % 5;
  for (size_t i = 0; i < count; ++i) {
    ParamShape param{"p" + std::to_string(i), std::vector<int64_t>(1 + random() % 3)};
    for (int64_t& size : param.shape) {
      const int64_t choices[] = {1, 2, 3, 5, 8, 13, 16, 0};
      size = choices[random() % (random() % 16 == 0 ? 8 : 7)];
    }
    const size_t dim = random() % param.shape.size();
    if (dim > 0) {
      param.shape[dim] = drawn.ranks * static_cast<int64_t>(1 + random() % 3);
    }
    drawn.params.push_back(param);
    drawn.dims.push_back(static_cast<int64_t>(dim));
  }
  return drawn;
}

std::vector<int64_t> numbers(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The shards of all ranks, one behind the other: of parameter i the numbers of its elements + i *
/// 10000, at the places that the boxes and slices say; elsewhere -1.
std::vector<int64_t> numbered_output(const GroupLayout& layout, const ChunkedCase& drawn) {
  std::vector<int64_t> output(static_cast<size_t>(layout.numel()), -1);
  for (int64_t rank = 0; rank < layout.ranks; ++rank) {
    const std::vector<Shard> shards = shards_of_rank(layout, drawn.params, rank, {"dp_shard"});
    const std::vector<ParamSlice> slices = slices_of_rank(layout, rank);
    for (size_t i = 0; i < shards.size(); ++i) {
      EXPECT_EQ(total_numel(shards[i].boxes), slices[i].numel());
      EXPECT_LE(shards[i].boxes.size(), 1U);
      const int64_t begin = rank * layout.shard_numel + slices[i].shard_offset;
      for (const Box& box : shards[i].boxes) {
        EXPECT_EQ(box.sizes, local_shape(layout, i, drawn.params[i].shape, rank));
        for_each_run(box, whole_box(drawn.params[i].shape), box,
                     [&](int64_t from, int64_t to, int64_t numel) {
                       for (int64_t k = 0; k < numel; ++k) {
                         int64_t& place = output.at(static_cast<size_t>(begin + to + k));
                         EXPECT_EQ(place, -1) << "two elements at one place";
                         place = static_cast<int64_t>(i) * 10000 + from + k;
                       }
                     });
      }
    }
  }
  return output;
}

TEST(ChunkedLayoutTest, RunsOfAnyRangesOfTheShardsGiveEveryElementOnce) {
  std::mt19937 random(21);
  for (int round = 0; round < 400; ++round) {
    const ChunkedCase drawn = random_case(random);
    const GroupLayout layout = make_chunked_layout(drawn.params, drawn.dims, drawn.ranks);
    const std::vector<int64_t> output = numbered_output(layout, drawn);
    std::vector<std::vector<int64_t>> whole;
    for (const ParamPlacement& param : layout.params) {
      whole.emplace_back(static_cast<size_t>(param.numel), -1);
    }
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      for (int64_t begin = 0; begin < layout.shard_numel;) {
        const int64_t end = std::min<int64_t>(begin + 1 + random() % 50, layout.shard_numel);
        for (size_t i = 0; i < whole.size(); ++i) {
          int64_t next = begin;
          for (const RunBlock& block : runs_in_shard(layout, i, rank, {begin, end})) {
            EXPECT_GE(block.shard_begin, next);
            next = block.shard_begin + block.numel();
            for (int64_t k = 0; k < block.numel(); ++k) {
              const int64_t to = block.param_begin + k / block.run_numel * block.param_stride +
                                 k % block.run_numel;
              const int64_t from = rank * layout.shard_numel + block.shard_begin + k;
              whole[i].at(static_cast<size_t>(to)) =
                  output.at(static_cast<size_t>(from)) - static_cast<int64_t>(i) * 10000;
            }
          }
          EXPECT_LE(next, end);
        }
        begin = end;
      }
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(whole[i], numbers(layout.params[i].numel)) << "round " << round;
    }
  }
}

TEST(ChunkedLayoutTest, PaddingIsWhatNoChunkCovers) {
  std::mt19937 random(22);
  for (int round = 0; round < 400; ++round) {
    const ChunkedCase drawn = random_case(random);
    const GroupLayout layout = make_chunked_layout(drawn.params, drawn.dims, drawn.ranks);
    const std::vector<int64_t> output = numbered_output(layout, drawn);
    std::vector<int> expected;
    for (const int64_t number : output) {
      expected.push_back(number < 0 ? 1 : 0);
    }
    std::vector<int> by_range(output.size(), 0);
    std::vector<int> by_rank(output.size(), 0);
    std::vector<int> by_block(output.size(), 0);
    const auto mark = [](std::vector<int>& at, int64_t begin, int64_t end) {
      EXPECT_LT(begin, end);
      for (int64_t i = begin; i < end; ++i) {
        ++at.at(static_cast<size_t>(i));
      }
    };
    for (const Range& gap : padding_of(layout)) {
      mark(by_range, gap.begin, gap.end);
    }
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      for (const Range& gap : padding_of_rank(layout, rank)) {
        mark(by_rank, rank * layout.shard_numel + gap.begin, rank * layout.shard_numel + gap.end);
      }
    }
    for (const PaddingBlock& block : padding_blocks(layout)) {
      for (int64_t rank = block.first_rank; rank < block.first_rank + block.ranks; ++rank) {
        mark(by_block, rank * layout.shard_numel + block.range.begin,
             rank * layout.shard_numel + block.range.end);
      }
    }
    ASSERT_EQ(by_range, expected) << "round " << round;
    ASSERT_EQ(by_rank, expected) << "round " << round;
    ASSERT_EQ(by_block, expected) << "round " << round;
  }
}

TEST(ChunkedLayoutTest, WhatIsNotCopiedOutLiesInTheOutputInOnePiece) {
  std::mt19937 random(23);
  int in_place = 0;
  for (int round = 0; round < 600; ++round) {
    const ChunkedCase drawn = random_case(random);
    const GroupLayout layout = make_chunked_layout(drawn.params, drawn.dims, drawn.ranks);
    EXPECT_EQ(layout.whole_numel() % layout.ranks, 0);
    int64_t end = 0;
    for (size_t i = 0; i < drawn.params.size(); ++i) {
      const DimChunks& chunks = layout.chunks[i];
      EXPECT_TRUE(chunks.padded_numel() == 0 || chunks.shard_offset % kChunkAlignment == 0);
      EXPECT_EQ(layout.params[i].numel, numel_of(drawn.params[i].shape));
      EXPECT_LE(layout.params[i].offset + layout.params[i].numel, layout.whole_numel());
      if (layout.copies_out()) {
        EXPECT_EQ(layout.params[i].offset % kAlignment, 0);
        EXPECT_GE(layout.params[i].offset, end);
        end = layout.params[i].offset + layout.params[i].numel;
      }
    }
    if (layout.copies_out()) {
      continue;
    }
    ++in_place;
    const std::vector<int64_t> output = numbered_output(layout, drawn);
    for (size_t i = 0; i < drawn.params.size(); ++i) {
      for (int64_t k = 0; k < layout.params[i].numel; ++k) {
        ASSERT_EQ(output.at(static_cast<size_t>(layout.params[i].offset + k)),
                  static_cast<int64_t>(i) * 10000 + k);
      }
    }
  }
  EXPECT_GT(in_place, 50);
}

TEST(ChunkedLayoutTest, OnlyWhatNeedsItIsCopiedOut) {
  // One parameter along its first dimension, of whatever size: all padding is behind it.
  for (const int64_t rows : {1, 3, 8, 9}) {
    const GroupLayout layout = make_chunked_layout({{"w", {rows, 5}}}, {0}, 4);
    EXPECT_FALSE(layout.copies_out()) << rows;
    EXPECT_EQ(layout.shard_numel, rows == 1 ? kAlignment : (rows + 3) / 4 * 5) << rows;
  }
  EXPECT_FALSE(make_chunked_layout({{"w", {6, 5}}, {"b", {6}}}, {0, 0}, 1).copies_out());
  EXPECT_FALSE(make_chunked_layout({{"w", {1, 8}}}, {1}, 4).copies_out());
  EXPECT_FALSE(make_chunked_layout({{"w", {8, 4}}, {"none", {0, 4}}}, {0, 0}, 4).copies_out());
  EXPECT_TRUE(make_chunked_layout({{"w", {8, 5}}, {"b", {8}}}, {0, 0}, 4).copies_out());
  EXPECT_TRUE(make_chunked_layout({{"w", {2, 8}}}, {1}, 4).copies_out());
}

TEST(ChunkedLayoutTest, EarlierRanksHaveMoreAndLaterOnesNone) {
  const auto extents = [](int64_t size, int64_t ranks) {
    const DimChunks chunks = divide_along({size}, 0, ranks);
    std::vector<int64_t> held;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Range range = indices_of_rank(chunks, rank);
      held.push_back(range.end - range.begin);
    }
    return held;
  };
  EXPECT_THAT(extents(5, 4), ::testing::ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(extents(9, 4), ::testing::ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(extents(3, 4), ::testing::ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(extents(0, 2), ::testing::ElementsAre(0, 0));
  EXPECT_EQ(blocks_of(divide_along({5, 3}, 0, 4)), (std::vector<ChunkBlock>{{0, 2, 2}, {2, 1, 1}}));
  EXPECT_EQ(blocks_of(divide_along({5, 8}, 1, 4)), (std::vector<ChunkBlock>{{0, 4, 2}}));
  EXPECT_TRUE(blocks_of(divide_along({5, 0}, 0, 4)).empty());
}

TEST(ChunkedLayoutTest, ShardsAreWholePagesIfThatIsNotTooMuch) {
  const std::vector<ParamShape> large = {{"w", {1000, 100}}, {"b", {1000}}};
  const GroupLayout paged = make_chunked_layout(large, {0, 0}, 2, 1024);
  EXPECT_TRUE(paged.is_paged);
  EXPECT_EQ(paged.shard_numel, 50 * 1024);
  const GroupLayout small = make_chunked_layout({{"w", {10, 10}}, {"b", {10}}}, {0, 0}, 2, 1024);
  EXPECT_FALSE(small.is_paged);
  EXPECT_EQ(small.shard_numel, 128);
  EXPECT_TRUE(make_chunked_layout({{"w", {64, 64}}}, {0}, 2, 1024).is_paged);
}

TEST(ChunkedLayoutTest, RejectsNonsense) {
  EXPECT_THROW(make_chunked_layout({{"p", {4}}}, {0}, 0), std::invalid_argument);
  EXPECT_THROW(make_chunked_layout({{"p", {4}}}, {1}, 2), std::invalid_argument);
  EXPECT_THROW(make_chunked_layout({{"p", {4}}}, {-1}, 2), std::invalid_argument);
  EXPECT_THROW(make_chunked_layout({{"p", {4}}}, {}, 2), std::invalid_argument);
  EXPECT_THROW(make_chunked_layout({{"p", {-4}}}, {0}, 2), std::invalid_argument);
  EXPECT_THROW(slices_of_rank(make_chunked_layout({{"p", {4}}}, {0}, 2), 2), std::invalid_argument);
}

TEST(MemoryPlanTest, WhatIsCopiedOutIsGatheredToTwoSlotsAndUsedInOne) {
  std::vector<GroupMemory> groups(4);
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i] = {.unit = static_cast<int64_t>(i), .numel = 40, .copied_numel = 36, .ranks = 2};
  }
  EXPECT_EQ(plan_memory(groups).parameter_slot_bytes, 2 * 40 * 4 + 36 * 4);
  EXPECT_EQ(plan_memory(groups).gradient_slot_bytes, 2 * 40 * 4);
  groups[0].stays_gathered = true;
  EXPECT_EQ(plan_memory(groups).parameter_slot_bytes, 36 * 4 + 2 * 40 * 4 + 36 * 4);
  for (GroupMemory& group : groups) {
    group = {.unit = group.unit,
             .numel = 40,
             .copied_numel = 36,
             .ranks = 2,
             .compute_bytes = 2,
             .is_windowed = true};
  }
  EXPECT_EQ(plan_memory(groups).parameter_slot_bytes, 36 * 2);
  EXPECT_EQ(plan_memory(groups).shard_bytes, 4 * 20 * 4) << "peers read the shard itself";
  for (GroupMemory& group : groups) {
    group.part_ranks = 2;
  }
  EXPECT_EQ(plan_memory(groups).parameter_slot_bytes, 2 * 36 * 2 + 4 * 18 * 2)
      << "parts are gathered to where the parameters are";
}

}  // namespace
}  // namespace fsdp::plan
