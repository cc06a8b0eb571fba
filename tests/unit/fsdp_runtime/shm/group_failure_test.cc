#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "fsdp_runtime/shm/error.h"
#include "tests/unit/fsdp_runtime/shm/thread_ranks.h"

namespace fsdp::shm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;

TEST(GroupFailureTest, TimeoutNamesOperationSequenceAndRank) {
  std::shared_ptr<World> world = make_thread_world(2);
  Group group(world, 0, milliseconds(100));
  Group silent(world, 1, milliseconds(100));
  float x = 1;
  try {
    group.all_reduce(1, &x, 1, DType::kF32, ReduceOp::kSum);
    FAIL() << "no peer came, yet it returned";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("all_reduce #1"), HasSubstr("rank 1"), HasSubstr("100 ms")));
  }
  // The failure is the group's: the late rank hears of it at once.
  EXPECT_THROW(silent.barrier(0), std::runtime_error);
}

// A rank may be preempted between claiming the failure and writing its reason. Whoever looks in
// between must not take the lost peer for a fault of the peer that noticed.
TEST(GroupFailureTest, FailureIsReadOnlyOnceItsReasonIsWritten) {
  std::shared_ptr<World> world = make_thread_world(2);
  Control& block = world->block();
  block.failed_rank.store(2);
  Group group(world, 0, std::chrono::seconds(60));
  std::string reason;
  std::thread waiter([&] {
    try {
      group.barrier(0);
    } catch (const PeerLost& error) {
      reason = error.what();
      EXPECT_EQ(error.rank, 7);
    } catch (const std::exception& error) {
      reason = std::string("no lost peer: ") + error.what();
    }
  });
  while (world->slot(0, 0).posted.load() == 0) {
    std::this_thread::yield();
  }
  std::string("rank 7 died").copy(block.reason.data(), block.reason.size());
  block.lost_rank.store(8);
  block.is_reason_written.store(1);
  waiter.join();
  EXPECT_EQ(reason, "shared-memory group failed, noticed by rank 1: rank 7 died");
}

TEST(GroupFailureTest, RankThatDiedWhileItWroteTheReasonIsFoundLost) {
  std::shared_ptr<World> world = make_thread_world(2);
  world->block().failed_rank.store(2);
  { Group gone(world, 1, std::chrono::seconds(60)); }
  Group group(world, 0, std::chrono::seconds(60));
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THROW(group.barrier(0), PeerLost);
  }
}

// Rank 0 is preempted before it has written why it failed. Rank 2 has heard of it otherwise, and
// left; rank 1 sees nothing but that.
TEST(GroupFailureTest, WhoLeavesBeforeTheReasonIsWrittenIsNotTheCause) {
  std::shared_ptr<World> world = make_thread_world(3);
  Control& block = world->block();
  block.failed_rank.store(1);
  { Group gone(world, 2, std::chrono::seconds(60)); }
  Group group(world, 1, std::chrono::seconds(60));
  std::optional<int64_t> lost;
  std::thread waiter([&] {
    try {
      group.barrier(0);
    } catch (const PeerLost& error) {
      lost = error.rank;
    }
  });
  std::this_thread::sleep_for(milliseconds(100));  // the pause is the fault
  std::string("rank 7 died").copy(block.reason.data(), block.reason.size());
  block.lost_rank.store(8);
  block.is_reason_written.store(1);
  waiter.join();
  EXPECT_EQ(lost, 7);
}

TEST(GroupFailureTest, MismatchNamesBothOperations) {
  const auto errors = run_ranks(2, [](Group& group) {
    float x[4] = {};
    if (group.rank() == 0) {
      group.all_reduce(1, x, 4, DType::kF32, ReduceOp::kSum);
    } else {
      group.all_reduce(1, x, 3, DType::kF32, ReduceOp::kSum);
    }
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("4 x float32"), HasSubstr("3 x float32"),
                             HasSubstr("same operations in the same order")));
  }
}

// The group would wait ten minutes, longer than this test may take.
TEST(GroupFailureTest, LeavingPeerIsNamedLongBeforeTheTimeout) {
  const auto errors = run_ranks(
      3,
      [](Group& group) {
        group.barrier(0);
        if (group.rank() != 2) {
          group.barrier(0);
        }
      },
      std::chrono::minutes(10));
  EXPECT_THAT(errors[0], HasSubstr("rank 2 left the group"));
  EXPECT_THAT(errors[1], HasSubstr("rank 2 left the group"));
  EXPECT_EQ(errors[2], "");
}

TEST(GroupFailureTest, WhatARankDidBeforeItLeftStillCounts) {
  for (int round = 0; round < 50; ++round) {
    for (const std::string& error : run_ranks(3, [](Group& group) {
           float x = 1;
           group.all_reduce(1, &x, 1, DType::kF32, ReduceOp::kSum);
           ASSERT_EQ(x, 3);
         })) {
      ASSERT_EQ(error, "");
    }
  }
}

// Ranks of a part of the world have numbers of their own, which nobody outside knows.
TEST(GroupFailureTest, RanksAreCalledByTheirNames) {
  std::shared_ptr<World> world = make_thread_world(2);
  { Group gone(world, 1, std::chrono::seconds(60), {4, 6}); }
  Group group(world, 0, std::chrono::seconds(60), {4, 6});
  try {
    group.barrier(0);
    FAIL() << "the peer has left, yet it returned";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank, 6);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("noticed by rank 4"), HasSubstr("rank 6 left the group")));
  }
}

TEST(GroupFailureTest, AbortReachesWaitersOfBothLanes) {
  const auto errors = run_ranks(2, [](Group& group) {
    group.barrier(0);
    if (group.rank() == 0) {
      group.abort("the operator said so", std::nullopt);
    } else {
      std::string first;
      std::thread other([&] {
        try {
          group.barrier(1);
        } catch (const std::exception& error) {
          first = error.what();
        }
      });
      EXPECT_THROW(group.barrier(0), std::runtime_error);
      other.join();
      throw std::runtime_error(first);
    }
  });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 0"), HasSubstr("the operator said so")));
}

}  // namespace
}  // namespace fsdp::shm
