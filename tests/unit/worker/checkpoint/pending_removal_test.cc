#include "worker/checkpoint/pending_removal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <memory>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

const CheckpointError kFull("the disk is full", ENOSPC);

std::shared_future<void> Ended() {
  std::promise<void> promise;
  promise.set_value();
  return promise.get_future().share();
}

/// What HasMadeWay says on two ranks, which say the same: 1 or 0, or the number of its error.
int SaidOfTwoRanks(const PendingRemoval& of_rank0, const CheckpointError& failure,
                   bool was_under_way) {
  std::atomic<int> said[2] = {-1000, -1000};
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& ranks) {
    // The others' threads end with their part of a save.
    const PendingRemoval others(Ended(), 1, nullptr);
    try {
      const PendingRemoval& removal = ranks->rank() == 0 ? of_rank0 : others;
      said[ranks->rank()] = static_cast<int>(
          removal.HasMadeWay(GroupOf(ranks), failure, was_under_way && ranks->rank() == 0));
    } catch (const CheckpointError& error) {
      said[ranks->rank()] = error.error_number();
    }
  });
  EXPECT_EQ(said[0], said[1]);
  return said[0];
}

TEST(PendingRemovalTest, WhatWasInTheWayAndHasEndedMadeRoom) {
  EXPECT_EQ(SaidOfTwoRanks(PendingRemoval(Ended(), 1, nullptr), kFull, true), 1);
}

TEST(PendingRemovalTest, WhatHadEndedBeforeOrWasNeverThereMakesNoRoom) {
  EXPECT_EQ(SaidOfTwoRanks(PendingRemoval(Ended(), 1, nullptr), kFull, false), 0);
  EXPECT_EQ(SaidOfTwoRanks(PendingRemoval(), kFull, false), 0);
}

TEST(PendingRemovalTest, OtherErrorsAreNotWaitedFor) {
  std::promise<void> never;
  const PendingRemoval removal(never.get_future().share(), 1, nullptr);
  EXPECT_EQ(SaidOfTwoRanks(removal, CheckpointError("a broken sector", EIO), true), 0);
}

TEST(PendingRemovalTest, OneThatHangsIsGivenUpByAllRanks) {
  std::promise<void> never;
  int asked = 0;
  const PendingRemoval removal(never.get_future().share(), 1, [&] { return ++asked == 2; });
  EXPECT_EQ(SaidOfTwoRanks(removal, kFull, true), ECANCELED);
}

TEST(PendingRemovalTest, OneThatHangsIsNotWaitedForForEver) {
  std::promise<void> never;
  const PendingRemoval removal(never.get_future().share(), 1, nullptr,
                               std::chrono::milliseconds(0));
  EXPECT_EQ(SaidOfTwoRanks(removal, kFull, true), 0);
}

TEST(PendingRemovalTest, OneThatEndsIsWaitedForInTurns) {
  std::promise<void> promise;
  int asked = 0;
  const PendingRemoval removal(promise.get_future().share(), 1, [&] {
    if (++asked == 2) {
      promise.set_value();
    }
    return false;
  });
  EXPECT_EQ(SaidOfTwoRanks(removal, kFull, true), 1);
  EXPECT_EQ(asked, 2);
}

TEST(PendingRemovalTest, NameIsNeededByTheSameStepAlone) {
  std::promise<void> promise;
  const PendingRemoval removal(promise.get_future().share(), 7, nullptr);
  removal.RequireName(8);
  try {
    removal.RequireName(7);
    ADD_FAILURE() << "it is being removed";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.error_number(), kBeingRemoved);
  }
  promise.set_value();
  removal.RequireName(7);
  PendingRemoval().RequireName(0);
}

}  // namespace
}  // namespace fsdprun::checkpoint
