// See Note [Draining a node].

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
TEST(JobDrain, OthersGoOnWithoutTheNodeFreeOfCharge) {
  Job job(FreeSpec(2, 3, 0));
  job.RunThree();
  EXPECT_EQ(job.machine_.NodesWithout(Incarnation(2)), 2);
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(2)}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30",
                          "stop 3 g1 signal 15 grace 30"));
  EXPECT_TRUE(job.machine_.IsDrained(Incarnation(2)));
  EXPECT_THAT(job.machine_.reason(), HasSubstr("node node-2 is drained by an operator"));
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(2)}), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), IsEmpty());
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), IsEmpty());
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}),
              ElementsAre("release 2 0", "prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 3 g2 rank 1 of 2 restart 0 world 1"));
  EXPECT_EQ(job.last_release_, "drained by an operator");
  EXPECT_TRUE(job.last_goes_on_);
  EXPECT_THAT(job.Say(2, 0, AgentLeft{}), IsEmpty());
  EXPECT_EQ(job.machine_.nodes().size(), 2u);
  EXPECT_EQ(job.machine_.membership_changes(), 1);
  EXPECT_THAT(job.history_, Contains("draining node-2 @1"));
  EXPECT_EQ(job.history_.back(), "drained node-2");
}

TEST(JobDrain, SpareJustLeaves) {
  Job job(FreeSpec(2, 2, 0));
  job.RunTwo();
  job.Join(3);
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(3)}), ElementsAre("release 3 0"));
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
  EXPECT_EQ(job.machine_.NodesWithout(Incarnation(9)), 2);
  job.Say(3, 0, AgentLeft{});
  EXPECT_EQ(job.history_.back(), "drained node-3");
}

TEST(JobDrain, OrderIsRepeatedOnANewStream) {
  Job job(FreeSpec(2, 3, 0));
  job.RunThree();
  job.Step(job::DrainAsked{Incarnation(2)});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2", "stop 2 g1 signal 15 grace 30"));
  for (const uint64_t who : {1, 2, 3}) {
    job.Say(who, 1, WorkersStopped{});
  }
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("release 2 0"));
}

TEST(JobDrain, AgentThatMissedTheOrderIsNeverAdmittedAgain) {
  Job job(FreeSpec(2, 2, 0));
  job.RunTwo();
  job.Join(3);
  job.Step(job::DrainAsked{Incarnation(3)});
  job.Step(job::AgentStreamLost{Incarnation(3)});
  job.Wait(std::chrono::seconds(1), {1, 2});  // Its lease is over.
  ASSERT_EQ(job.machine_.nodes().size(), 2u);
  EXPECT_THAT(job.history_, Contains("drained node-3"));
  EXPECT_THAT(job.Join(3), ElementsAre("release 3 0"));
  EXPECT_EQ(job.machine_.nodes().size(), 2u);
  // What an operator starts there is another agent.
  EXPECT_THAT(job.Join(4, {}, 0, "node-3"), Contains("admit 4"));
}

TEST(JobDrain, WhileAWorldIsBeingPreparedItBeginsAnew) {
  Job job(FreeSpec(1, 2, 0));
  job.Join(1);
  job.Join(2);
  ASSERT_EQ(job.machine_.phase(), job::Phase::kPreparing);
  job.Step(job::DrainAsked{Incarnation(1)});
  job.Say(2, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              ElementsAre("release 1 0", "prepare 2 g2 rank 0 of 1 restart 0 world 1"));
}

TEST(JobDrain, WhileAWorldIsBeingStoppedItChangesNothingButTheNext) {
  Job job(FreeSpec(2, 3, 3));
  job.RunThree();
  job.Exit(1, 1, 0, 7);
  ASSERT_EQ(job.machine_.phase(), job::Phase::kStopping);
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(3)}), IsEmpty());
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}),
              ElementsAre("release 3 0", "prepare 1 g2 rank 0 of 2 restart 1",
                          "prepare 2 g2 rank 1 of 2 restart 1"));
}

TEST(JobDrain, TooFewAreWaitedFor) {
  Job job(FreeSpec(2, 2, 0));
  job.RunTwo();
  job.Step(job::DrainAsked{Incarnation(1)});
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 0"));
  job.Say(1, 0, AgentLeft{});
  EXPECT_THAT(job.machine_.reason(),
              HasSubstr("1 of 2 joined (node-2); gone: node-1 (drained by an operator)"));
  job.Join(3);
  EXPECT_EQ(job.machine_.phase(), job::Phase::kPreparing);
}

TEST(JobDrain, LossWhileItIsDrainedIsFreeOfChargeToo) {
  Job job(FreeSpec(2, 3, 0));
  job.RunThree();
  job.Step(job::DrainAsked{Incarnation(2)});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::seconds(1), {1, 3});
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}),
              Contains("prepare 1 g2 rank 0 of 2 restart 0 world 1"));
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("release 2 0"));
}

TEST(JobDrain, NodeWhoseWorkersAreDoneLeavesAtOnceUnlessItHasTheStore) {
  Job job(FreeSpec(2, 3, 0));
  job.RunThree();
  job.Exit(2, 1, 0, 0);
  job.Exit(2, 1, 1, 0);
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(2)}), ElementsAre("release 2 0"));
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
  job.Exit(1, 1, 0, 0);
  job.Exit(1, 1, 1, 0);
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(1)}), Contains("stop 3 g1 signal 15 grace 30"));
}

TEST(JobDrain, JobThatEndsMeanwhileTellsTheNodeThatItWasDrained) {
  Job job(FreeSpec(2, 3, 0));
  job.RunThree();
  job.Step(job::DrainAsked{Incarnation(2)});
  job.Step(job::OperatorStop{15});
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}),
              ElementsAre("release 1 1", "release 2 0", "release 3 1"));
}

TEST(JobDrain, JobThatEndsIsLeftAlone) {
  Job job(FreeSpec(2, 3, 0));
  job.RunThree();
  job.Step(job::OperatorStop{15});
  EXPECT_THAT(job.machine_.WhyFixed(), HasSubstr("being stopped by signal 15"));
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(2)}), IsEmpty());
  EXPECT_FALSE(job.machine_.IsDrained(Incarnation(2)));
  EXPECT_THAT(job.Step(job::DrainAsked{Incarnation(9)}), IsEmpty());
}

TEST(JobDrain, RankThatBindsIsFreeForAnotherNode) {
  Job job(Spec(2, 2, 0));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Start(1, {1, 2});
  job.Step(job::DrainAsked{Incarnation(2)});
  job.Join(3, 1);
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}),
              ElementsAre("release 2 0", "prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 3 g2 rank 1 of 2 restart 0 world 1"));
}

// --- See Note [Taking a job over].

JobSpec KeptDrained(int min, int max) {
  JobSpec spec = FreeSpec(min, max, 0);
  spec.may_be_taken_over = true;
  return spec;
}

TEST(JobDrain, SuccessorGoesOnWithIt) {
  Job before(KeptDrained(2, 3));
  before.RunThree();
  before.Step(job::DrainAsked{Incarnation(2)});
  ASSERT_THAT(before.record_->drained, ElementsAre(Incarnation(2)));
  Job job(KeptDrained(2, 3), before);
  job.Step(job::TimerDue{});
  for (const uint64_t who : {1, 2, 3}) {
    EXPECT_THAT(job.Join(who, {}, 1),
                Contains("stop " + std::to_string(who) + " g1 signal 15 grace 30"));
  }
  job.Say(1, 1, WorkersStopped{});
  job.Say(3, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}),
              ElementsAre("release 2 0", "prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 3 g2 rank 1 of 2 restart 0 world 1"));
}

TEST(JobDrain, SuccessorDoesNotAdmitWhoWasDrained) {
  Job before(KeptDrained(2, 2));
  before.RunTwo();
  before.Join(3);
  before.Step(job::DrainAsked{Incarnation(3)});  // It does not hear of it.
  Job job(KeptDrained(2, 2), before);
  job.Step(job::TimerDue{});
  EXPECT_THAT(job.Join(3), ElementsAre("release 3 0"));
}

}  // namespace
}  // namespace fsdprun
