#include "launcher/coordinator/ending.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace fsdprun {
namespace {

using std::chrono::seconds;

/// A world of one node, of generation 7, in which what `failures` says has failed.
class EndingTest : public ::testing::Test {
 protected:
  EndingTest() {
    NodeInfo info;
    info.incarnation = Incarnation(1);
    info.name = "node-1";
    info.local_world_size = 2;
    world_.Form({{info, -1}}, {.generation = Generation(7)}, now_);
  }
  void Fail(const std::string& what, int exit_code) {
    Failure failure;
    failure.what = what;
    failure.node_name = "node-1";
    failure.worker = WorkerExit{};
    failure.worker->exit_code = exit_code;
    world_.failures().Add(std::move(failure), now_, now_);
  }
  const JobOutcome& Decide(JobOutcome outcome) {
    job::RecoveryBudgets budgets;
    budgets.restarts_used = 2;
    ending_.Decide(std::move(outcome), world_, budgets, now_);
    return *ending_.outcome();
  }
  static job::Node Node(uint64_t who, int group_rank) {
    job::Node node;
    node.info.incarnation = Incarnation(who);
    node.group_rank = group_rank;
    return node;
  }

  JobSpec spec_;
  World world_{spec_};
  Ending ending_{spec_};
  const MonoTime now_{std::chrono::hours(1)};
};

TEST_F(EndingTest, EveryOutcomeSaysWhatIsKnownOfTheJob) {
  spec_.max_restarts = 5;
  const JobOutcome& outcome = Decide(job::Succeeded(world_));
  EXPECT_EQ(outcome.kind, OutcomeKind::kSucceeded);
  EXPECT_EQ(outcome.reason, "all 2 workers exited with 0");
  EXPECT_EQ(outcome.generation, Generation(7));
  EXPECT_EQ(outcome.restarts_used, 2);
  EXPECT_EQ(outcome.max_restarts, 5);
  EXPECT_EQ(outcome.ends.workers, 2);
  EXPECT_FALSE(outcome.failure.has_value());
}

TEST_F(EndingTest, FailureNamesItsNodeAndWhyNothingFollows) {
  Fail("rank 1 exited with 3", 3);
  const JobOutcome& outcome = Decide(job::FailedWith(world_, "nothing follows"));
  EXPECT_EQ(outcome.reason, "rank 1 exited with 3 on node node-1; nothing follows");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.failure->root.worker->exit_code, 3);
}

TEST_F(EndingTest, ExitCodeIsTheWorkersWhereThatIsWanted) {
  spec_.exits_as_worker = true;
  Fail("rank 1 exited with 3", 3);
  EXPECT_EQ(Decide(job::FailedWith(world_, "nothing follows")).exit_code, 3);
}

TEST_F(EndingTest, CollateralAloneIsReportedAsTheReasonOfTheStop) {
  world_.BeginStop({job::StopKind::kFailure, 15, seconds(2), "it was stopped"}, now_);
  const JobOutcome& outcome = Decide(job::FailedWith(world_, "nothing follows"));
  EXPECT_EQ(outcome.reason, "it was stopped; nothing follows");
  EXPECT_EQ(outcome.failure->root.generation, Generation(7));
}

TEST_F(EndingTest, WhatFailedBeforeComesAfterTheCauseOfTheEnd) {
  Fail("first", 3);
  Fail("second", 4);
  const JobOutcome& outcome =
      Decide(job::EndedBy(CauseKind::kJoinTimeout, "too few nodes", world_));
  EXPECT_EQ(outcome.reason, "too few nodes");
  EXPECT_EQ(outcome.failure->root.kind, CauseKind::kJoinTimeout);
  EXPECT_EQ(outcome.failure->root.generation, Generation(7));
  ASSERT_EQ(outcome.failure->others.size(), 1u);
  EXPECT_EQ(outcome.failure->others[0].what, "first");
  EXPECT_EQ(outcome.failure->other_failures, 2);
}

TEST_F(EndingTest, OperatorsStopKeepsTheFailureThatCameFirst) {
  Fail("first", 3);
  const JobOutcome& outcome = Decide(job::StoppedBySignal(2, " before a restart", true));
  EXPECT_EQ(outcome.reason, "stopped by signal 2 before a restart");
  EXPECT_TRUE(outcome.grace_cut_short);
  EXPECT_EQ(outcome.failure->root.what, "first");
}

TEST_F(EndingTest, OnlyWhoTookPartOrLeavesIsToldTheCodeOfAFailure) {
  Fail("first", 3);
  Decide(job::FailedWith(world_, "nothing follows"));
  EXPECT_EQ(ending_.ReleaseOf(Node(1, 0)).exit_code, 1);
  EXPECT_EQ(ending_.ReleaseOf(Node(2, -1)).exit_code, 0);
  job::Node leaving = Node(3, -1);
  leaving.leaving = true;
  EXPECT_EQ(ending_.ReleaseOf(leaving).exit_code, 1);
}

TEST_F(EndingTest, JobThatNeverStartedHasFailedForAll) {
  Failure cause;
  cause.kind = CauseKind::kCannotStart;
  cause.what = "no such program";
  EXPECT_EQ(Decide(job::NeverStarted(cause)).reason, "no such program");
  EXPECT_EQ(ending_.ReleaseOf(Node(2, -1)).exit_code, 1);
}

TEST_F(EndingTest, TooFewNodesAreAFailureForAll) {
  Decide(job::EndedBy(CauseKind::kJoinTimeout, "too few nodes", world_));
  EXPECT_EQ(ending_.ReleaseOf(Node(2, -1)).exit_code, 1);
}

TEST_F(EndingTest, LateAgentHearsWhatItWasToldOrHowItsWorldEnded) {
  Fail("first", 3);
  const std::string reason = Decide(job::FailedWith(world_, "nothing follows")).reason;
  ending_.ReleaseOf(Node(2, -1));
  EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(2), Generation()).exit_code, 0);
  EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(2), Generation()).reason, reason);
  EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(3), Generation(7)).exit_code, 1);
  EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(3), Generation(7)).reason, reason);
  for (const Generation held : {Generation(6), Generation()}) {
    EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(3), held).exit_code, 1);
    EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(3), held).reason,
              "the job with this run id is over: " + reason);
  }
}

TEST_F(EndingTest, LateMemberOfAWorldThatSucceededSucceeds) {
  Decide(job::Succeeded(world_));
  EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(3), Generation(7)).exit_code, 0);
  EXPECT_EQ(ending_.ReleaseOfLate(Incarnation(3), Generation(6)).exit_code, 1);
}

TEST_F(EndingTest, NodesAreWaitedForOnceAndAStallPutsThatOff) {
  EXPECT_FALSE(ending_.EndWaitIfDue(now_));
  ending_.PutOffDeadline(seconds(1));
  EXPECT_EQ(ending_.deadline(), MonoTime::max());
  Decide(job::Succeeded(world_));
  EXPECT_EQ(ending_.deadline(), now_ + seconds(1));
  ending_.PutOffDeadline(seconds(5));
  EXPECT_FALSE(ending_.EndWaitIfDue(now_ + seconds(5)));
  EXPECT_TRUE(ending_.EndWaitIfDue(now_ + seconds(6)));
  EXPECT_FALSE(ending_.EndWaitIfDue(now_ + seconds(7)));
  EXPECT_FALSE(ending_.is_finished());
  ending_.Finish();
  EXPECT_TRUE(ending_.is_finished());
}

}  // namespace
}  // namespace fsdprun
