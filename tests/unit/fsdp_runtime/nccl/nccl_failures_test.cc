// What ranks do when NCCL does not end, fails, or loses a peer, and what they ask of it at the end.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/nccl/nccl_ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr milliseconds kShort{5000};  // forming takes a part of it
/// Of LibTorch's watchdog, if it is left to itself, it would be a minute.
constexpr std::chrono::seconds kEndMax{40};

size_t place_of(const std::string& call, const std::vector<std::string>& calls) {
  return static_cast<size_t>(std::find(calls.begin(), calls.end(), call) - calls.begin());
}

/// For "unit layers.0", held by NCCL.
void wait_for_a_gather(Collectives& group) {
  group
      .all_gather_into(on_device(group, 2 * group.size()), on_device(group, 2),
                       {Lane::kGather, "unit layers.0"})
      ->wait_on_host();
  group.check_results("reading unit layers.0");
}

class NcclFailuresTest : public NcclTest {
 protected:
  // The first group of a process loads LibTorch's CUDA libraries, for which kShort may be too
  // short.
  static void SetUpTestSuite() {
    run_nccl([](Collectives& group) { group.barrier(); });
  }

  /// All communicators of `device` are revoked before one is freed, and none in order.
  void expect_revoked_and_aborted(int device) const {
    const std::vector<std::string> calls = cuda_.calls(device);
    const size_t freed =
        std::min(place_of("abort communicator 1", calls), place_of("abort communicator 2", calls));
    EXPECT_LT(freed, calls.size());
    EXPECT_LT(place_of("revoke communicator 1", calls), freed);
    EXPECT_LT(place_of("revoke communicator 2", calls), freed);
    EXPECT_THAT(calls, Not(Contains(StartsWith("finalize"))));
  }
};

TEST_F(NcclFailuresTest, AnOperationThatDoesNotEndIsNamedAndEverythingIsAborted) {
  const auto errors = run_nccl(
      [this](Collectives& group) {
        group.barrier();
        nccl_.hold(group.rank());
        wait_for_a_gather(group);
      },
      kShort);
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("all_gather for unit layers.0 on lane 0 has not ended on "
                                   "the device of rank "),
                         HasSubstr("within 5000 ms"))));
  expect_revoked_and_aborted(0);
  expect_revoked_and_aborted(1);
}

// One that waits may wait for the kernel of another, which nobody has told to end.
TEST_F(NcclFailuresTest, AllCommunicatorsAreToldToEndBeforeOneIsWaitedFor) {
  const auto errors = run_nccl(
      [this](Collectives& group) {
        const std::shared_ptr<Collectives> part = group.split(/*color=*/0);
        group.barrier();
        nccl_.hold(group.rank());
        const at::Tensor norm = on_device(group, 1);
        const WorkPtr behind = part->all_reduce(norm, ReduceOp::kSum, {Lane::kReduce, "the norm"});
        wait_for_a_gather(group);
      },
      kShort);
  EXPECT_THAT(errors, Each(HasSubstr("has not ended on the device of rank ")));
  for (const int device : {0, 1}) {
    const std::vector<std::string> calls = cuda_.calls(device);
    EXPECT_THAT(calls, Not(Contains(HasSubstr("waits for another's kernel"))));
    for (const char* number : {"1", "2", "3", "4"}) {
      const std::string call = std::string("revoke communicator ") + number;
      EXPECT_EQ(std::count(calls.begin(), calls.end(), call), 1) << call;
    }
  }
}

TEST_F(NcclFailuresTest, AnAsynchronousErrorIsOneOfTheOperationInFlightOnAllRanks) {
  const auto begin = steady_clock::now();
  const auto errors = run_nccl([this](Collectives& group) {
    group.barrier();
    nccl_.hold(group.rank());
    if (group.rank() == 1) {
      nccl_.set_asynchronous_error(1, ncclRemoteError);
    }
    wait_for_a_gather(group);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("unit layers.0"),
                                 HasSubstr("NCCL reports: the double's network error"))));
  EXPECT_LT(steady_clock::now() - begin, kEndMax);
  expect_revoked_and_aborted(0);
  expect_revoked_and_aborted(1);
}

TEST_F(NcclFailuresTest, WhatCannotBeLaunchedIsNamedOnAllRanks) {
  const auto errors = run_nccl([this](Collectives& group) {
    group.barrier();
    nccl_.hold(group.rank());
    if (group.rank() == 1) {
      nccl_.set_launch_error(1, ncclInternalError);
    }
    wait_for_a_gather(group);
  });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("all_gather for unit layers.0 on lane 0 on rank 1"),
                               HasSubstr("an error of the double")));
  EXPECT_THAT(errors[0], HasSubstr("an error of the double"));
}

TEST_F(NcclFailuresTest, APeerThatLeavesBecauseOfAnErrorIsNamed) {
  const auto errors = run_nccl([this](Collectives& group) {
    group.barrier();
    nccl_.hold(group.rank());
    if (group.rank() == 1) {
      throw std::runtime_error("out of data");
    }
    try {
      wait_for_a_gather(group);
      ADD_FAILURE() << "rank 1 has left";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank, 1);
      throw;
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the group because of an error of its own"));
  EXPECT_EQ(errors[1], "out of data");
  expect_revoked_and_aborted(0);
}

TEST_F(NcclFailuresTest, AnAbortEndsWhatIsInFlightAndSaysWhy) {
  const auto errors = run_nccl([this](Collectives& group) {
    group.barrier();
    nccl_.hold(group.rank());
    if (group.rank() == 1) {
      ASSERT_TRUE(cuda_.wait_for_call(0, "all_gather"));
      group.abort("the loss is not a number");
    }
    wait_for_a_gather(group);
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 aborted all groups: the loss is not a number")));
  expect_revoked_and_aborted(0);
}

// NCCL waits in there for ranks that do not come, and nothing can end that.
TEST_F(NcclFailuresTest, AFormationThatDoesNotEndIsLeftBehindAtTheTimeout) {
  nccl_.hold_forming();
  const auto errors = run_nccl([](Collectives&) { ADD_FAILURE() << "formed"; }, kShort);
  EXPECT_THAT(errors, Contains(AllOf(HasSubstr("forming the group on rank "),
                                     HasSubstr("has waited for its peers for 5000 ms"))));
  EXPECT_THAT(errors, Each(HasSubstr("has waited for its peers")));
  // The threads that were left behind end, and what they have formed with them.
  nccl_.let_go_of_forming();
  EXPECT_TRUE(nccl_.wait_until_none_is_left());
}

TEST_F(NcclFailuresTest, AnOrderlyEndFinalizesEachCommunicatorBeforeItIsDestroyed) {
  const auto errors = run_nccl([](Collectives& group) { wait_for_a_gather(group); });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
  for (const int device : {0, 1}) {
    const std::vector<std::string> calls = cuda_.calls(device);
    for (const std::string name : {"communicator 1", "communicator 2"}) {
      const size_t finalized = place_of("finalize " + name, calls);
      EXPECT_LT(finalized, place_of("destroy " + name, calls));
      EXPECT_LT(place_of("destroy " + name, calls), calls.size());
    }
    EXPECT_THAT(calls, Not(Contains(StartsWith("abort"))));
    EXPECT_THAT(calls, Not(Contains(StartsWith("revoke"))));
  }
}

}  // namespace
}  // namespace fsdp::testing
