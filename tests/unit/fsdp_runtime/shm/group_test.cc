#include "fsdp_runtime/shm/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>
#include <vector>

#include "tests/unit/fsdp_runtime/shm/same_bits.h"
#include "tests/unit/fsdp_runtime/shm/thread_ranks.h"

namespace fsdp::shm {
namespace {

using testing::run_ranks;
using testing::same_bits;

// A copy of `values` in the arena or in private memory, so that both paths are tested.
struct Buffer {
  Buffer(Group& group, const std::vector<float>& values, bool in_arena)
      : owned(in_arena ? group.allocate(values.size() * sizeof(float)) : nullptr),
        fallback(in_arena ? std::vector<float>() : values),
        data(in_arena ? static_cast<float*>(owned.get()) : fallback.data()) {
    std::copy(values.begin(), values.end(), data);
  }
  std::shared_ptr<void> owned;
  std::vector<float> fallback;
  float* data;
};

float value(int rank, size_t i) {
  return static_cast<float>(rank + 1) * 0.37f + static_cast<float>(i % 1013) * 1.0e-3f;
}

// What `rank` contributes.
std::vector<float> values_of(int rank, size_t numel) {
  std::vector<float> values(numel);
  for (size_t i = 0; i < numel; ++i) {
    values[i] = value(rank, i);
  }
  return values;
}

// Elements [begin, end) of the sum of what all ranks contribute, added in rank order.
std::vector<float> sum_over_ranks(int ranks, size_t begin, size_t end) {
  std::vector<float> sums(end - begin);
  for (size_t i = begin; i < end; ++i) {
    float sum = value(0, i);
    for (int rank = 1; rank < ranks; ++rank) {
      sum += value(rank, i);
    }
    sums[i - begin] = sum;
  }
  return sums;
}

enum class Placement { kPrivate, kArena, kOddRanksInArena };

struct GroupCase {
  const char* name;
  int ranks;
  size_t numel;  // per rank
  Placement placement;
};

// The name of a case in ctest, which must be the same in every run.
void PrintTo(const GroupCase& given, std::ostream* out) { *out << given.name; }

class GroupTest : public ::testing::TestWithParam<GroupCase> {
 protected:
  int size() const { return GetParam().ranks; }
  size_t numel() const { return GetParam().numel; }
  size_t total() const { return numel() * static_cast<size_t>(size()); }
  static size_t rank_of(const Group& group) { return static_cast<size_t>(group.rank()); }
  Buffer place(Group& group, const std::vector<float>& values) const {
    const Placement placement = GetParam().placement;
    return {group, values,
            placement == Placement::kArena ||
                (placement == Placement::kOddRanksInArena && group.rank() % 2 == 1)};
  }
  std::vector<float> all_in_rank_order() const {
    std::vector<float> all;
    for (int rank = 0; rank < size(); ++rank) {
      const std::vector<float> values = values_of(rank, numel());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  std::vector<float> own_sums(const Group& group) const {
    return sum_over_ranks(size(), rank_of(group) * numel(), (rank_of(group) + 1) * numel());
  }
  void expect_ok(const std::function<void(Group&)>& body) const {
    for (const std::string& error : run_ranks(size(), body)) {
      EXPECT_EQ(error, "");
    }
  }
};

TEST_P(GroupTest, AllGatherConcatenatesInRankOrder) {
  const std::vector<float> expected = all_in_rank_order();
  expect_ok([&](Group& group) {
    const Buffer input = place(group, values_of(group.rank(), numel()));
    std::vector<float> output(total());
    group.all_gather(0, output.data(), input.data, numel() * 4);
    EXPECT_TRUE(same_bits(output.data(), expected));
  });
}

TEST_P(GroupTest, AllGatherInPlace) {
  const std::vector<float> expected = all_in_rank_order();
  expect_ok([&](Group& group) {
    const Buffer output = place(group, std::vector<float>(total()));
    float* own = output.data + rank_of(group) * numel();
    const std::vector<float> values = values_of(group.rank(), numel());
    std::copy(values.begin(), values.end(), own);
    group.all_gather(0, output.data, own, numel() * 4);
    EXPECT_TRUE(same_bits(output.data, expected));
  });
}

TEST_P(GroupTest, ReduceScatterAddsInRankOrder) {
  expect_ok([&](Group& group) {
    const Buffer input = place(group, values_of(group.rank(), total()));
    std::vector<float> output(numel());
    group.reduce_scatter(1, output.data(), input.data, numel(), DType::kF32, ReduceOp::kAvg);
    std::vector<float> expected = own_sums(group);
    for (float& sum : expected) {
      sum /= static_cast<float>(size());
    }
    EXPECT_TRUE(same_bits(output.data(), expected));
  });
}

TEST_P(GroupTest, ReduceScatterIntoItsOwnInput) {
  expect_ok([&](Group& group) {
    const Buffer input = place(group, values_of(group.rank(), total()));
    float* own = input.data + rank_of(group) * numel();
    group.reduce_scatter(1, own, input.data, numel(), DType::kF32, ReduceOp::kSum);
    EXPECT_TRUE(same_bits(own, own_sums(group)));
  });
}

TEST_P(GroupTest, AllReduceGivesEveryRankTheSameBits) {
  const std::vector<float> expected = sum_over_ranks(size(), 0, numel());
  expect_ok([&](Group& group) {
    const Buffer buffer = place(group, values_of(group.rank(), numel()));
    group.all_reduce(1, buffer.data, numel(), DType::kF32, ReduceOp::kSum);
    EXPECT_TRUE(same_bits(buffer.data, expected));
  });
}

TEST_P(GroupTest, BroadcastFromEveryRoot) {
  expect_ok([&](Group& group) {
    for (int root = 0; root < size(); ++root) {
      const Buffer buffer = place(group, values_of(group.rank() + 10 * root, numel()));
      group.broadcast(0, buffer.data, numel() * 4, root);
      EXPECT_TRUE(same_bits(buffer.data, values_of(root + 10 * root, numel())));
    }
  });
}

// One element, part of one staging chunk, more chunks than are staged at once, each in every kind
// of memory; and every number of ranks.
INSTANTIATE_TEST_SUITE_P(
    Sizes, GroupTest,
    ::testing::Values(GroupCase{"one_alone", 1, 1021, Placement::kArena},
                      GroupCase{"one_element_private", 4, 1, Placement::kPrivate},
                      GroupCase{"one_element_arena", 2, 1, Placement::kArena},
                      GroupCase{"one_element_mixed", 3, 1, Placement::kOddRanksInArena},
                      GroupCase{"one_chunk_private", 3, 1021, Placement::kPrivate},
                      GroupCase{"one_chunk_mixed", 2, 1021, Placement::kOddRanksInArena},
                      GroupCase{"many_chunks_private", 2, 700001, Placement::kPrivate},
                      GroupCase{"many_chunks_arena", 3, 700001, Placement::kArena},
                      GroupCase{"many_chunks_mixed", 4, 700001, Placement::kOddRanksInArena}),
    [](const auto& info) { return info.param.name; });

TEST(GroupOrderTest, EmptyOperationsStillMeet) {
  for (const std::string& error : run_ranks(3, [](Group& group) {
         group.all_gather(0, nullptr, nullptr, 0);
         group.reduce_scatter(1, nullptr, nullptr, 0, DType::kF32, ReduceOp::kSum);
         group.all_reduce(1, nullptr, 0, DType::kF32, ReduceOp::kSum);
       })) {
    EXPECT_EQ(error, "");
  }
}

TEST(GroupOrderTest, LanesRunAtTheSameTime) {
  // Rank 0 starts lane 0 first, rank 1 lane 1 first: with one shared queue this would deadlock.
  for (const std::string& error : run_ranks(2, [](Group& group) {
         std::vector<float> gathered(200000), input(100000, 1.0f);
         std::vector<float> reduced(50000), grads(100000, 2.0f);
         for (int round = 0; round < 20; ++round) {
           const auto gather = [&] { group.all_gather(0, gathered.data(), input.data(), 400000); };
           const auto reduce = [&] {
             group.reduce_scatter(1, reduced.data(), grads.data(), 50000, DType::kF32,
                                  ReduceOp::kSum);
           };
           std::thread other;
           if (group.rank() == 0) {
             other = std::thread(reduce);
             gather();
           } else {
             other = std::thread(gather);
             reduce();
           }
           other.join();
         }
         ASSERT_EQ(reduced[49999], 4.0f);
         ASSERT_EQ(gathered[199999], 1.0f);
       })) {
    EXPECT_EQ(error, "");
  }
}

TEST(GroupOrderTest, ManySmallOperationsKeepTheirOrder) {
  for (const std::string& error : run_ranks(4, [](Group& group) {
         for (int64_t step = 0; step < 2000; ++step) {
           int64_t sum = step * (group.rank() + 1);
           group.all_reduce(1, &sum, 1, DType::kI64, ReduceOp::kSum);
           ASSERT_EQ(sum, step * 10);
         }
       })) {
    EXPECT_EQ(error, "");
  }
}

TEST(GroupOrderTest, MemoryOutlivesTheGroup) {
  std::shared_ptr<void> kept;
  run_ranks(1, [&](Group& group) {
    kept = group.allocate(1 << 20);
    std::memset(kept.get(), 5, 1 << 20);
  });
  EXPECT_EQ(static_cast<char*>(kept.get())[(1 << 20) - 1], 5);
}

}  // namespace
}  // namespace fsdp::shm
