#include "fsdp_runtime/shm/window_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "fsdp_runtime/shm/error.h"
#include "tests/unit/fsdp_runtime/shm/processes.h"
#include "tests/unit/fsdp_runtime/shm/thread_ranks.h"
#include "tests/unit/fsdp_runtime/shm/two_ranks.h"

namespace fsdp::shm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::TwoRanks;

// --- Who waits for whom

TEST(WindowLaneTest, AGatherIsDoneOnceAllHaveIssuedItWhateverTheyDoWithIt) {
  TwoRanks ranks;
  const auto window = ranks.make_window("unit a");
  const Gather gather = ranks.lane(0).issue(*window[0], "unit a");
  EXPECT_FALSE(ranks.lane(0).is_done(gather));
  ranks.lane(1).issue(*window[1], "unit a");
  EXPECT_TRUE(ranks.lane(0).is_done(gather));
  ranks.lane(0).wait(gather);
  ranks.lane(0).release(*window[0]);
}

TEST(WindowLaneTest, GathersInFlightAreAwaitedInAnyOrderAndMoreThanOnceByAnyThread) {
  TwoRanks ranks;
  const auto a = ranks.make_window("unit a");
  const auto b = ranks.make_window("unit b");
  const Gather first = ranks.lane(0).issue(*a[0], "unit a");
  const Gather second = ranks.lane(0).issue(*b[0], "unit b");
  ranks.lane(1).issue(*a[1], "unit a");
  std::thread other([&] {
    for (const Gather& gather : {second, first, second}) {
      ranks.lane(0).wait(gather);
    }
  });
  ranks.lane(1).wait(ranks.lane(1).issue(*b[1], "unit b"));
  ranks.lane(0).wait(first);
  other.join();
}

TEST(WindowLaneTest, SoManyGathersMayBeInFlightAndNoMore) {
  TwoRanks ranks(milliseconds(100));
  const auto window = ranks.make_window("unit a");
  const auto issue = [&](int rank) {
    const Gather gather = ranks.lane(rank).issue(*window[rank], "unit a");
    ranks.lane(rank).release(*window[rank]);
    return gather;
  };
  const Gather first = issue(1);
  for (uint64_t i = 0; i < kWindowDescriptors; ++i) {
    issue(0);
  }
  ranks.lane(1).wait(first);
  issue(0);
  EXPECT_THAT(error_of([&] { issue(0); }),
              AllOf(HasSubstr("all_gather #2 for unit a of window 1"),
                    HasSubstr("rank 0 waited 100 ms for rank 1 to start it")));
}

TEST(WindowLaneTest, AShardIsNotWrittenWhileAPeerReadsIt) {
  TwoRanks ranks(milliseconds(100));
  const auto window = ranks.make_window("unit a");
  for (const int rank : {0, 1}) {
    ranks.lane(rank).issue(*window[rank], "unit a");
  }
  ranks.lane(0).release(*window[0]);
  EXPECT_THAT(error_of([&] { ranks.lane(0).wait_for_readers(*window[0]); }),
              AllOf(HasSubstr("the readers of the shard of unit a: "),
                    HasSubstr("rank 0 waited 100 ms for rank 1 to end its use of it"),
                    HasSubstr("it has ended 0 uses of 1 that it has begun")));
}

TEST(WindowLaneTest, AShardIsNotWrittenWhileAPeerHasYetToReadIt) {
  TwoRanks ranks(milliseconds(100));
  const auto window = ranks.make_window("unit a");
  ranks.lane(0).issue(*window[0], "unit a");
  ranks.lane(0).release(*window[0]);
  EXPECT_THAT(error_of([&] { ranks.lane(0).wait_for_readers(*window[0]); }),
              HasSubstr("it has ended 0 uses of 0 that it has begun"));
}

TEST(WindowLaneTest, WhoeverEndsAUseLetsTheWriterGoOn) {
  TwoRanks ranks;
  const auto window = ranks.make_window("unit a");
  for (const int rank : {0, 1}) {
    ranks.lane(rank).issue(*window[rank], "unit a");
  }
  ranks.lane(0).release(*window[0]);
  std::thread writer([&] { ranks.lane(0).wait_for_readers(*window[0]); });
  ranks.lane(1).release(*window[1]);
  writer.join();
  ranks.lane(1).wait_for_readers(*window[1]);
}

TEST(WindowLaneTest, DestroyingAWindowEndsItsUse) {
  TwoRanks ranks;
  auto window = ranks.make_window("unit a");
  for (const int rank : {0, 1}) {
    ranks.lane(rank).issue(*window[rank], "unit a");
  }
  ranks.lane(0).release(*window[0]);
  window[1].reset();
  ranks.lane(0).wait_for_readers(*window[0]);
}

TEST(WindowLaneTest, ReadersOfAllWindowsAreThoseOfWhatThisRankDoesNotHold) {
  TwoRanks ranks(milliseconds(100));
  const auto held = ranks.make_window("unit a");
  const auto other = ranks.make_window("unit b");
  auto gone = ranks.make_window("unit c");
  for (Window* window : {held[0].get(), other[0].get(), gone[0].get()}) {
    ranks.lane(0).issue(*window, "units");
  }
  ranks.lane(0).release(*gone[0]);
  gone[0].reset();
  ranks.lane(0).wait_for_all_readers();
  ranks.lane(0).release(*other[0]);
  EXPECT_THAT(error_of([&] { ranks.lane(0).wait_for_all_readers(); }),
              HasSubstr("the readers of the shard of unit b"));
}

// --- Mistakes of one rank, which leave the group as it is

TEST(WindowLaneTest, MistakesAreToldAndChangeNothing) {
  TwoRanks ranks;
  const auto window = ranks.make_window("unit a");
  WindowLane& lane = ranks.lane(0);
  EXPECT_THAT(error_of([&] { lane.release(*window[0]); }),
              AllOf(HasSubstr("unit a"), HasSubstr("rank 0 has not gathered it")));
  lane.issue(*window[0], "unit a");
  EXPECT_THAT(error_of([&] { lane.issue(*window[0], "unit a"); }),
              AllOf(HasSubstr("unit a"), HasSubstr("end that use (release) first")));
  EXPECT_THAT(error_of([&] { lane.wait_for_readers(*window[0]); }),
              AllOf(HasSubstr("the readers of the shard of unit a"),
                    HasSubstr("before the shard is written")));
  lane.release(*window[0]);
  ranks.lane(1).wait(ranks.lane(1).issue(*window[1], "unit a"));
  EXPECT_THAT(error_of([&] { ranks.groups[0]->make_window(0, page_bytes() + 1, "unit b"); }),
              AllOf(HasSubstr("unit b"), HasSubstr("a multiple of the page size")));
  EXPECT_NE(ranks.make_window("unit b")[1], nullptr);
}

// --- Ends of the whole group

TEST(WindowLaneTest, RanksThatGatherDifferentUnitsHearWhoDidWhat) {
  for (const std::string& error : run_ranks(3, [](Group& group) {
         const auto a = group.make_window(0, page_bytes(), "unit a");
         const auto b = group.make_window(0, page_bytes(), "unit b");
         WindowLane& lane = *group.windows();
         lane.wait(lane.issue(*a, "unit a"));
         lane.release(*a);
         const auto& next = group.rank() == 1 ? b : a;
         lane.wait(lane.issue(*next, next->purpose()));
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("ranks 0 and 2 issued all_gather #2 for unit a of window 1"),
                             HasSubstr("but rank 1 issued all_gather #2 for unit b of window 2")));
  }
}

TEST(WindowLaneTest, WindowsOfOnePurposeAreStillDifferent) {
  TwoRanks ranks;
  const auto a = ranks.make_window("");
  const auto b = ranks.make_window("");
  ranks.lane(0).issue(*a[0], "");
  EXPECT_THAT(error_of([&] { ranks.lane(1).wait(ranks.lane(1).issue(*b[1], "")); }),
              AllOf(HasSubstr("of window 1"), HasSubstr("of window 2")));
}

TEST(WindowLaneTest, WhoHasEndedThisPartOfTheProgramIsToldToWhoGathers) {
  TwoRanks ranks;
  const auto window = ranks.make_window("unit a");
  ranks.lane(1).mark("the end of a backward");
  EXPECT_THAT(error_of([&] { ranks.lane(0).wait(ranks.lane(0).issue(*window[0], "unit a")); }),
              AllOf(HasSubstr("rank 0 issued all_gather #1 for unit a"),
                    HasSubstr("rank 1 issued barrier #1 for the end of a backward")));
}

TEST(WindowLaneTest, WindowsOfDifferentSizesAreRefusedOnAllRanks) {
  for (const std::string& error : run_ranks(3, [](Group& group) {
         group.make_window(0, (group.rank() == 1 ? 2 : 1) * page_bytes(), "unit a");
       })) {
    EXPECT_THAT(error, AllOf(HasSubstr("unit a"),
                             HasSubstr("rank 1 makes it of " + std::to_string(2 * page_bytes())),
                             HasSubstr("rank 0 of " + std::to_string(page_bytes()))));
  }
}

TEST(WindowLaneTest, TimeoutsNameTheGatherThePeerAndTheTime) {
  TwoRanks ranks(milliseconds(100));
  const auto window = ranks.make_window("unit a");
  const Gather gather = ranks.lane(0).issue(*window[0], "unit a");
  EXPECT_THAT(error_of([&] { ranks.lane(0).wait(gather); }),
              AllOf(HasSubstr("all_gather #1 for unit a of window 1"),
                    HasSubstr("waited 100 ms for rank 1 to start it")));
  // The failure is the group's.
  EXPECT_THAT(error_of([&] { ranks.lane(1).issue(*window[1], "unit a"); }), HasSubstr("100 ms"));
  EXPECT_TRUE(ranks.lane(0).is_done(gather)) << "waiting for it throws at once";
}

TEST(WindowLaneTest, WhoLeavesIsLostToGatherersAndWriters) {
  for (const bool is_writer : {false, true}) {
    TwoRanks ranks;
    const auto window = ranks.make_window("unit a");
    const Gather gather = ranks.lane(0).issue(*window[0], "unit a");
    ranks.groups[1].reset();
    ranks.lane(0).release(*window[0]);
    try {
      is_writer ? ranks.lane(0).wait_for_readers(*window[0]) : ranks.lane(0).wait(gather);
      ADD_FAILURE() << "the peer has left";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank, 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 left the group"));
    }
  }
}

TEST(WindowLaneTest, WhatARankDidBeforeItLeftStillCounts) {
  TwoRanks ranks;
  auto window = ranks.make_window("unit a");
  ranks.lane(1).issue(*window[1], "unit a");
  window[1].reset();
  ranks.groups[1].reset();
  ranks.lane(0).wait(ranks.lane(0).issue(*window[0], "unit a"));
  ranks.lane(0).release(*window[0]);
  ranks.lane(0).wait_for_readers(*window[0]);
}

TEST(WindowLaneTest, AbortReachesGatherersAndWriters) {
  for (const bool is_writer : {false, true}) {
    TwoRanks ranks;
    const auto window = ranks.make_window("unit a");
    const Gather gather = ranks.lane(1).issue(*window[1], "unit a");
    ranks.lane(1).release(*window[1]);
    std::string error;
    std::thread waiter([&] {
      error = error_of([&] {
        is_writer ? ranks.lane(1).wait_for_readers(*window[1]) : ranks.lane(1).wait(gather);
      });
    });
    ranks.groups[0]->abort("the operator said so", std::nullopt);
    waiter.join();
    EXPECT_THAT(error, HasSubstr("the operator said so"));
  }
}

// Rank 1 is killed where rank 0 waits for it.
class WindowKillTest : public testing::ProcessesTest, public ::testing::WithParamInterface<bool> {
 protected:
  std::unique_ptr<Group> join(int rank) {
    testing::FolderExchange exchange(folder_);
    return std::make_unique<Group>(attach(exchange, rank, 2, std::chrono::seconds(20)), rank,
                                   std::chrono::minutes(10));
  }
};

TEST_P(WindowKillTest, AKilledPeerIsNamedLongBeforeTheTimeout) {
  const bool is_writer = GetParam();
  const pid_t victim = spawn([&] {
    const auto group = join(1);
    const auto window = group->make_window(0, page_bytes(), "unit a");
    if (is_writer) {
      group->windows()->wait(group->windows()->issue(*window, "unit a"));
    }
    ::raise(SIGSTOP);
    return 0;
  });
  const auto group = join(0);
  const auto window = group->make_window(0, page_bytes(), "unit a");
  WindowLane& lane = *group->windows();
  const Gather gather = lane.issue(*window, "unit a");
  std::thread killer([&] {
    int status = 0;
    ::waitpid(victim, &status, WUNTRACED);
    ::kill(victim, SIGKILL);
  });
  try {
    if (is_writer) {
      lane.wait(gather);
      lane.release(*window);
      lane.wait_for_readers(*window);
    } else {
      lane.wait(gather);
    }
    ADD_FAILURE() << "the peer is dead, yet it returned";
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank, 1);
    EXPECT_THAT(error.what(), HasSubstr(is_writer ? "rank 1 died before it could end its use of it"
                                                  : "rank 1 died before it could start it"));
  }
  killer.join();
  exit_status(victim);
}

INSTANTIATE_TEST_SUITE_P(Waits, WindowKillTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ForReaders" : "InAGather"; });

}  // namespace
}  // namespace fsdp::shm
