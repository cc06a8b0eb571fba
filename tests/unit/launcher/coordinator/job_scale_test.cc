// Other numbers of nodes than those of the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobScale, TooManyMembersMakeAnotherWorldFreeOfCharge) {
  Job job(FreeSpec(1, 3, 0));
  job.RunThree();
  EXPECT_THAT(job.Step(job::ScaleAsked{1, 2}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30",
                          "stop 3 g1 signal 15 grace 30"));
  EXPECT_THAT(job.machine_.reason(), HasSubstr("an operator allows 2 of 3 nodes"));
  for (const uint64_t who : {1, 2}) {
    job.Say(who, 1, WorkersStopped{});
  }
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 2 g2 rank 1 of 2 restart 0 world 1"));
  EXPECT_THAT(job.history_, Contains("scaled to 1:2"));
  EXPECT_EQ(job.machine_.membership_changes(), 1);
  EXPECT_EQ(job.machine_.max_nodes(), 2);
  job.Start(2, {1, 2});
  // The spare waits until there is room again.
  EXPECT_THAT(job.Wait(std::chrono::seconds(5), {1, 2, 3}), IsEmpty());
  EXPECT_THAT(job.Step(job::ScaleAsked{1, 3}), Contains("stop 1 g2 signal 15 grace 30"));
}

TEST(JobScale, GrowthIsAwaitedAsEver) {
  Job job(FreeSpec(2, 2, 0));
  job.RunTwo();
  job.Join(3);
  EXPECT_THAT(job.Step(job::ScaleAsked{2, 4}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::seconds(1), {1, 2, 3}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30"));
}

TEST(JobScale, MoreThanAreThereCountFromTheNextWorldOn) {
  Job job(FreeSpec(2, 3, 0));
  job.RunThree();
  EXPECT_THAT(job.Step(job::ScaleAsked{4, 4}), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
  job.Step(job::RestartAsked{});
  for (const uint64_t who : {1, 2, 3}) {
    EXPECT_THAT(job.Say(who, 1, WorkersStopped{}), IsEmpty());
  }
  EXPECT_THAT(job.machine_.reason(), HasSubstr("3 of 4 joined"));
  EXPECT_THAT(job.Join(4), Contains("prepare 4 g2 rank 3 of 4 restart 0 world 1"));
}

TEST(JobScale, WorldThatIsOnlyBeingPreparedIsGivenUpForMore) {
  Job job(FreeSpec(2, 2, 0));
  job.Join(1);
  job.Join(2);
  ASSERT_EQ(job.machine_.phase(), job::Phase::kPreparing);
  EXPECT_THAT(job.Step(job::ScaleAsked{3, 3}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30"));
  EXPECT_THAT(job.machine_.reason(), HasSubstr("at least 3 nodes, and 2 are there"));
}

TEST(JobScale, FewerThanAreWaitedForMayBeThereAlready) {
  Job job(FreeSpec(3, 3, 0));
  job.Join(1);
  job.Join(2);
  EXPECT_THAT(job.Step(job::ScaleAsked{2, 2}), Contains("prepare 1 g1 rank 0 of 2 restart 0"));
}

TEST(JobScale, WorldWhoseWorkersHaveBegunToEndIsLeftAlone) {
  Job job(FreeSpec(1, 3, 0));
  job.RunThree();
  job.Exit(2, 1, 0, 0);
  EXPECT_THAT(job.Step(job::ScaleAsked{1, 1}), IsEmpty());
  EXPECT_EQ(job.machine_.max_nodes(), 1);
}

TEST(JobScale, WhatMeansNothingChangesNothing) {
  Job job(FreeSpec(1, 3, 0));
  job.RunThree();
  for (const job::ScaleAsked& asked :
       {job::ScaleAsked{0, 3}, job::ScaleAsked{3, 2}, job::ScaleAsked{1, 3}}) {
    EXPECT_THAT(job.Step(asked), IsEmpty());
    EXPECT_EQ(job.machine_.min_nodes(), 1);
    EXPECT_EQ(job.machine_.max_nodes(), 3);
  }
  EXPECT_THAT(job.history_, testing::Not(Contains(HasSubstr("scaled"))));
}

TEST(JobScale, RanksThatBindAreAsMany) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  EXPECT_TRUE(job.machine_.has_binding_ranks());
  EXPECT_THAT(job.Step(job::ScaleAsked{1, 1}), IsEmpty());
  EXPECT_EQ(job.machine_.max_nodes(), 2);
}

TEST(JobScale, NewcomersAreToldTheNewNumbers) {
  JobMachine machine(FreeSpec(1, 2, 0));
  const MonoTime now{std::chrono::seconds(1)};
  machine.Step(job::ScaleAsked{3, 5}, now);
  NodeInfo info;
  info.incarnation = Incarnation(1);
  const job::Effects effects =
      machine.Step(FromAgent{Incarnation(1), {}, AgentJoined{info, {}, {}}}, now);
  const auto& admit = std::get<AdmitAgent>(effects.messages.front().message);
  EXPECT_EQ(admit.terms->min_nodes, 3);
  EXPECT_EQ(admit.terms->max_nodes, 5);
}

// --- See Note [Taking a job over].

JobSpec KeptScaled(int min, int max) {
  JobSpec spec = FreeSpec(min, max, 0);
  spec.may_be_taken_over = true;
  return spec;
}

TEST(JobScale, SuccessorHasThem) {
  Job before(KeptScaled(1, 3));
  before.RunThree();
  before.Step(job::ScaleAsked{1, 2});
  ASSERT_TRUE(before.record_->scaled.has_value());
  EXPECT_EQ(job::WhyUnusable(*before.record_, KeptScaled(1, 3)), "");
  Job job(KeptScaled(1, 3), before);
  EXPECT_EQ(job.machine_.max_nodes(), 2);
  job.Step(job::TimerDue{});
  for (const uint64_t who : {1, 2, 3}) {
    job.Join(who, {}, 1);
    job.Say(who, 1, WorkersStopped{});
  }
  EXPECT_EQ(job.machine_.world().members().size(), 2u);
  EXPECT_EQ(job.record_->scaled, (job::NodeLimits{1, 2}));
}

TEST(JobScale, RecordOfAWorldThatNobodyHasScaledFitsTheCommandLine) {
  Job before(KeptScaled(1, 3));
  before.RunThree();
  EXPECT_FALSE(before.record_->scaled.has_value());
  job::Record record = *before.record_;
  EXPECT_THAT(job::WhyUnusable(record, KeptScaled(1, 2)), HasSubstr("--nnodes allows 2"));
  record.scaled = {1, 2};  // The world was begun before.
  EXPECT_EQ(job::WhyUnusable(record, KeptScaled(1, 2)), "");
  record.scaled = {2, 1};
  EXPECT_THAT(job::WhyUnusable(record, KeptScaled(1, 2)), HasSubstr("scaled to 2:1 nodes"));
}

}  // namespace
}  // namespace fsdprun
