// Operations that fail: on whom, with which error.

#include <ATen/ATen.h>
#include <fsdp/collectives.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>

#include "fsdp_runtime/src/comm/ended_work.h"
#include "fsdp_runtime/src/comm/gloo_collectives.h"
#include "fsdp_runtime/src/comm/local_world.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_backend;

TEST(CollectivesErrorTest, ArgumentsAreCheckedAtTheCall) {
  auto world = make_local_world(2);
  Collectives& group = *world[0];
  EXPECT_THROW(group.all_gather_into(at::empty({3}), at::empty({2})), c10::Error);
  EXPECT_THROW(group.all_gather_into(at::empty({4}), at::empty({2}, at::kDouble)), c10::Error);
  EXPECT_THROW(group.reduce_scatter_into(at::empty({2}), at::empty({3}), ReduceOp::kSum),
               c10::Error);
  EXPECT_THROW(group.reduce_scatter_into(at::empty({1}, at::kByte), at::empty({2}, at::kByte),
                                         ReduceOp::kSum),
               c10::Error);
  EXPECT_THROW(group.all_reduce(at::empty({2}, at::kLong), ReduceOp::kAvg), c10::Error);
  EXPECT_THROW(group.all_reduce(at::empty({4, 4}).t(), ReduceOp::kSum), c10::Error);
  EXPECT_THROW(group.all_reduce(at::Tensor(), ReduceOp::kSum), c10::Error);
  EXPECT_THROW(group.broadcast(at::empty({2}), 2), c10::Error);
  EXPECT_THROW(group.empty_for_comm(-1, at::kFloat), c10::Error);
}

TEST(CollectivesErrorTest, WaitRethrowsAsOftenAsItIsCalled) {
  auto world = make_local_world(2, std::chrono::milliseconds(80));
  const WorkPtr work = world[0]->all_reduce(at::ones({3}), ReduceOp::kSum);
  for (int i = 0; i < 2; ++i) {
    try {
      work->wait();
      FAIL() << "rank 1 never came";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce #1"), HasSubstr("rank 1")));
    }
  }
}

TEST(CollectivesErrorTest, AStageBehindAFailureDoesNotRunAndHasItsError) {
  for (const int64_t ranks : {1, 2}) {
    auto world = make_local_world(ranks);
    Collectives& group = *world[0];
    const WorkPtr failed =
        group.run_on_lane(Lane::kReduce, [] { TORCH_CHECK(false, "no such tensor"); });
    bool has_run = false;
    const WorkPtr behind =
        group.run_on_lane({Lane::kGather, "", failed}, [&has_run] { has_run = true; });
    for (const WorkPtr& work : {failed, behind, behind}) {
      try {
        work->wait();
        FAIL() << "it has failed";
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("no such tensor"));
      }
    }
    EXPECT_FALSE(has_run);
    // A failure of this rank alone is not one of the lane.
    group.run_on_lane(Lane::kReduce, [&has_run] { has_run = true; })->wait();
    EXPECT_TRUE(has_run);
  }
}

/// On a device.
class Launched : public Work {
 public:
  void wait() override { ++waits; }
  bool is_done() override { return is_ended; }
  int waits = 0;
  bool is_ended = false;
};

// NCCL's run_on_lane: its stages run in the caller, which is not to see their exceptions.
TEST(CollectivesErrorTest, AStageThatIsLaunchedAtOnceThrowsFromItsWork) {
  const auto launched = std::make_shared<Launched>();
  const auto fail = [] { TORCH_CHECK(false, "no such tensor"); };
  const auto launch = [&](const auto& run_stage) -> WorkPtr {
    run_stage();
    return launched;
  };
  EXPECT_EQ(launch_stage([] {}, launch), launched);
  const WorkPtr failed = launch_stage(fail, launch);
  EXPECT_FALSE(failed->is_done()) << "what it has launched is on the device";
  launched->is_ended = true;
  EXPECT_TRUE(failed->is_done());
  EXPECT_THROW(failed->wait(), c10::Error);
  EXPECT_EQ(launched->waits, 1) << "its memory may be given back now";
  const WorkPtr refused = launch_stage([] { FAIL() << "the group has failed"; },
                                       [](const auto&) -> WorkPtr { TORCH_CHECK(false, "gone"); });
  EXPECT_TRUE(refused->is_done());
  EXPECT_THROW(refused->wait(), c10::Error);
}

std::vector<std::string> errors_of(const std::string& backend, int64_t ranks,
                                   const testing::Body& body) {
  return run_backend(backend, ranks, body,
                     std::chrono::minutes(10));  // longer than a test may take
}

TEST(CollectivesErrorTest, RanksThatIssueOneOperationForDifferentPurposesHearWhoDidWhat) {
  for (const std::string backend : {"local", "gloo"}) {
    for (const std::string& error : errors_of(backend, 3, [](Collectives& group) {
           const std::string purpose = group.rank() == 1 ? "unit b" : "unit a";
           group.all_reduce(at::ones({3}), ReduceOp::kSum, {Lane::kReduce, purpose})->wait();
         })) {
      EXPECT_THAT(error, AllOf(HasSubstr("ranks 0 and 2 issued all_reduce #"),
                               HasSubstr(" for unit a on lane 1 ("),
                               HasSubstr("but rank 1 issued all_reduce #"),
                               HasSubstr(" for unit b on lane 1 (")));
    }
  }
}

TEST(CollectivesErrorTest, SizesThatDifferAreAnErrorOfBothRanksAndOfLaterOperations) {
  for (const std::string backend : {"local", "gloo"}) {
    for (const std::string& error : errors_of(backend, 2, [](Collectives& group) {
           at::Tensor tensor = at::ones({group.rank() == 0 ? 3 : 100000});
           EXPECT_THROW(group.all_reduce(tensor, ReduceOp::kSum)->wait(), c10::Error);
           group.barrier();
         })) {
      EXPECT_THAT(error, HasSubstr("same operations in the same order")) << backend;
    }
  }
}

// Its peers could only wait for it until their deadline. Nobody leaves before all have heard.
TEST(CollectivesErrorTest, AnOperationBehindAFailureFailsOnAllRanksOfItsGroup) {
  for (const std::string backend : {"local", "gloo"}) {
    std::barrier are_formed(2);
    std::barrier have_heard(2);
    const auto errors = errors_of(backend, 2, [&](Collectives& group) {
      are_formed.arrive_and_wait();  // or rank 0 could hear of the failure before it has its group
      WorkPtr after;
      if (group.rank() == 1) {
        after = group.run_on_lane(Lane::kGather, [] { TORCH_CHECK(false, "no such tensor"); });
      }
      const WorkPtr work =
          group.all_reduce(at::ones({3}), ReduceOp::kSum, {Lane::kReduce, "unit a", after});
      EXPECT_THROW(work->wait(), c10::Error);
      have_heard.arrive_and_wait();
      try {
        group.barrier();
        ADD_FAILURE() << "the group has failed";
      } catch (const PeerError& error) {
        EXPECT_EQ(group.rank(), 0) << "rank 1 is the cause, and no victim";
        EXPECT_EQ(error.rank, 1);
      } catch (const c10::Error&) {
        EXPECT_EQ(group.rank(), 1);
      }
      work->wait();
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr("no such tensor")) << backend;
    }
  }
}

// Its peer has the allocator's words, and must not take them for those of an allocation of its own.
TEST(CollectivesErrorTest, ARankWithoutMemoryForAReductionIsItsCauseAndItsPeersAreVictims) {
  std::barrier are_formed(2);
  const auto errors = errors_of("gloo", 2, [&](Collectives& group) {
    are_formed.arrive_and_wait();  // or rank 1 could hear of the failure before it has its group
    float element = 0;
    const int64_t count = group.rank() == 0 ? int64_t{1} << 57 : 2;  // never looked at
    std::vector<float> small(2);
    float* const data = group.rank() == 0 ? &element : small.data();
    const WorkPtr work =
        group.reduce_scatter_into(at::from_blob(data, {count / 2}, at::kFloat),
                                  at::from_blob(data, {count}, at::kFloat), ReduceOp::kSum);
    try {
      work->wait();
    } catch (const PeerError& error) {
      EXPECT_EQ(group.rank(), 1) << "rank 0 is the cause, and no victim";
      EXPECT_EQ(error.rank, 0);
      throw;
    } catch (const c10::Error&) {
      EXPECT_EQ(group.rank(), 0);
      throw;
    }
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 has no memory for what it receives in a reduction"),
                             HasSubstr("DefaultCPUAllocator")));
  }
}

TEST(CollectivesErrorTest, AbortEndsTheOperationsOfAllGroupsOnAllRanks) {
  for (const std::string backend : {"local", "gloo"}) {
    for (const std::string& error : errors_of(backend, 3, [](Collectives& group) {
           const std::shared_ptr<Collectives> part = group.split(0);
           part->barrier();
           if (group.rank() == 0) {
             group.abort("the operator said so");
           }
           part->barrier();
         })) {
      EXPECT_THAT(error, HasSubstr("rank 0 aborted all groups: the operator said so")) << backend;
    }
  }
}

// Each rank waits for the other on another lane.
TEST(CollectivesErrorTest, RankThatHasGoneOnIsToldToWhoWaitsForIt) {
  for (const std::string backend : {"local", "gloo"}) {
    for (
        const std::string& error : errors_of(backend, 2, [](Collectives& group) {
          if (group.rank() == 0) {
            group.all_gather_into(at::empty({2}), at::ones({1}), {Lane::kGather, "unit a"})->wait();
          } else {
            group.agree(0, "the end")->wait();
          }
        })) {
      EXPECT_THAT(error, AllOf(HasSubstr("rank 0 issued all_gather"), HasSubstr("for unit a"),
                               HasSubstr("rank 1 issued barrier"), HasSubstr("for the end")));
    }
  }
}

// Whoever waits for the timeout waits longer than this test may take.
TEST(CollectivesErrorTest, LeavingWithWorkInFlightDoesNotBlock) {
  auto world = make_local_world(2, std::chrono::minutes(10));
  world[0]->all_reduce(at::ones({3}), ReduceOp::kSum);
  world[0].reset();
  EXPECT_THROW(world[1]->all_reduce(at::ones({3}), ReduceOp::kSum)->wait(), PeerError);
}

// The texts of Gloo's exceptions. The last is the kernel's error for a peer that no longer answers.
TEST(CollectivesErrorTest, GloosTimeoutIsNotALostConnection) {
  EXPECT_TRUE(is_gloo_timeout("Timed out waiting 100ms for recv operation to complete"));
  EXPECT_TRUE(is_gloo_timeout("Application timeout caused pair closure"));
  EXPECT_FALSE(is_gloo_timeout("Connection closed by peer [127.0.0.1]:40000"));
  EXPECT_FALSE(is_gloo_timeout("Read error [127.0.0.1]:40000: Connection timed out"));
}

}  // namespace
}  // namespace fsdp
