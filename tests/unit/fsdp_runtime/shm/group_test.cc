#include "fsdp_runtime/shm/group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <tuple>

#include "tests/unit/fsdp_runtime/shm/thread_ranks.h"

namespace fsdp::shm {
namespace {

using testing::run_ranks;

// A buffer in the arena or in private memory, so that each test runs on both paths.
struct Buffer {
  Buffer(Group& group, size_t numel, bool in_arena)
      : owned(in_arena ? group.allocate(std::max<size_t>(numel, 1) * 4) : nullptr),
        fallback(in_arena ? 0 : numel + 1),
        data(in_arena ? static_cast<float*>(owned.get()) : fallback.data()) {}
  std::shared_ptr<void> owned;
  std::vector<float> fallback;
  float* data;
};

float value(int rank, size_t i) {
  return static_cast<float>(rank + 1) * 0.37f + static_cast<float>(i % 1013) * 1.0e-3f;
}

// ranks, elements per rank, how the buffers lie: 0 private, 1 arena, 2 odd ranks in the arena
class GroupTest : public ::testing::TestWithParam<std::tuple<int, size_t, int>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  size_t numel() const { return std::get<1>(GetParam()); }
  bool in_arena(int rank) const {
    const int placement = std::get<2>(GetParam());
    return placement == 1 || (placement == 2 && rank % 2 == 1);
  }
  void expect_ok(const std::function<void(Group&)>& body) {
    for (const std::string& error : run_ranks(size(), body)) {
      EXPECT_EQ(error, "");
    }
  }
};

TEST_P(GroupTest, AllGatherConcatenatesInRankOrder) {
  expect_ok([&](Group& group) {
    Buffer input(group, numel(), in_arena(group.rank()));
    for (size_t i = 0; i < numel(); ++i) {
      input.data[i] = value(group.rank(), i);
    }
    std::vector<float> output(numel() * static_cast<size_t>(size()));
    group.all_gather(0, output.data(), input.data, numel() * 4);
    for (size_t i = 0; i < output.size(); ++i) {
      ASSERT_EQ(output[i], value(static_cast<int>(i / numel()), i % numel()));
    }
  });
}

TEST_P(GroupTest, AllGatherInPlace) {
  expect_ok([&](Group& group) {
    Buffer output(group, numel() * static_cast<size_t>(size()), in_arena(group.rank()));
    float* own = output.data + static_cast<size_t>(group.rank()) * numel();
    for (size_t i = 0; i < numel(); ++i) {
      own[i] = value(group.rank(), i);
    }
    group.all_gather(0, output.data, own, numel() * 4);
    for (size_t i = 0; i < numel() * static_cast<size_t>(size()); ++i) {
      ASSERT_EQ(output.data[i], value(static_cast<int>(i / numel()), i % numel()));
    }
  });
}

TEST_P(GroupTest, ReduceScatterAddsInRankOrder) {
  expect_ok([&](Group& group) {
    const size_t total = numel() * static_cast<size_t>(size());
    Buffer input(group, total, in_arena(group.rank()));
    for (size_t i = 0; i < total; ++i) {
      input.data[i] = value(group.rank(), i);
    }
    std::vector<float> output(numel());
    group.reduce_scatter(1, output.data(), input.data, numel(), DType::kF32, ReduceOp::kAvg);
    for (size_t i = 0; i < numel(); ++i) {
      const size_t at = static_cast<size_t>(group.rank()) * numel() + i;
      float sum = value(0, at);
      for (int rank = 1; rank < size(); ++rank) {
        sum += value(rank, at);
      }
      ASSERT_EQ(output[i], sum / static_cast<float>(size()));
    }
  });
}

TEST_P(GroupTest, ReduceScatterIntoItsOwnInput) {
  expect_ok([&](Group& group) {
    const size_t total = numel() * static_cast<size_t>(size());
    Buffer input(group, total, in_arena(group.rank()));
    for (size_t i = 0; i < total; ++i) {
      input.data[i] = value(group.rank(), i);
    }
    float* own = input.data + static_cast<size_t>(group.rank()) * numel();
    group.reduce_scatter(1, own, input.data, numel(), DType::kF32, ReduceOp::kSum);
    for (size_t i = 0; i < numel(); ++i) {
      const size_t at = static_cast<size_t>(group.rank()) * numel() + i;
      float sum = value(0, at);
      for (int rank = 1; rank < size(); ++rank) {
        sum += value(rank, at);
      }
      ASSERT_EQ(own[i], sum);
    }
  });
}

TEST_P(GroupTest, AllReduceGivesEveryRankTheSameBits) {
  expect_ok([&](Group& group) {
    Buffer buffer(group, numel(), in_arena(group.rank()));
    for (size_t i = 0; i < numel(); ++i) {
      buffer.data[i] = value(group.rank(), i);
    }
    group.all_reduce(1, buffer.data, numel(), DType::kF32, ReduceOp::kSum);
    for (size_t i = 0; i < numel(); ++i) {
      float sum = value(0, i);
      for (int rank = 1; rank < size(); ++rank) {
        sum += value(rank, i);
      }
      ASSERT_EQ(buffer.data[i], sum);
    }
  });
}

TEST_P(GroupTest, BroadcastFromEveryRoot) {
  expect_ok([&](Group& group) {
    Buffer buffer(group, numel(), in_arena(group.rank()));
    for (int root = 0; root < size(); ++root) {
      for (size_t i = 0; i < numel(); ++i) {
        buffer.data[i] = value(group.rank() + 10 * root, i);
      }
      group.broadcast(0, buffer.data, numel() * 4, root);
      for (size_t i = 0; i < numel(); ++i) {
        ASSERT_EQ(buffer.data[i], value(root + 10 * root, i));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, GroupTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values<size_t>(1, 1021, 700001),
                                            ::testing::Values(0, 1, 2)));

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
