// See Note [Taking a job over].

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

constexpr std::chrono::seconds kSecond{1};

JobSpec KeptSpec(int min, int max, int restarts) {
  JobSpec spec = Spec(min, max, restarts);
  spec.may_be_taken_over = true;
  spec.node_ranks_bind = false;
  spec.launch_id = "first";
  return spec;
}

/// As the successor is started: with a launch id of its own, which does not count.
JobSpec SuccessorSpec(int min, int max, int restarts) {
  JobSpec spec = KeptSpec(min, max, restarts);
  spec.launch_id = "second";
  return spec;
}

/// The agent's first words on a new stream: who it is and what it has reported.
Words ComeAgain(Job& job, uint64_t who, uint64_t g, const std::vector<AgentMessage>& reports) {
  Words words = job.Join(who, {}, g);
  for (const AgentMessage& report : reports) {
    const Words more = job.Say(who, g, report);
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

std::vector<AgentMessage> Ran(uint64_t who) {
  std::optional<StoreEndpoint> store;
  if (who == 1) {
    store = StoreEndpoint{"10.0.0.1", 30000};
  }
  return {AgentPrepared{store}, AgentStarted{}};
}

AgentMessage Ended(int local_rank, int code) {
  WorkerExit exit;
  exit.local_rank = exit.rank = local_rank;
  exit.exit_code = code;
  return WorkerExited{exit};
}

TEST(JobTakenOver, WorkersThatRunGoOn) {
  Job before(KeptSpec(2, 2, 3));
  before.RunTwo();
  Job job(SuccessorSpec(2, 2, 3), before);
  EXPECT_THAT(job.Step(job::TimerDue{}), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
  // The commit is repeated, because the successor cannot know that it has arrived.
  EXPECT_THAT(ComeAgain(job, 1, 1, Ran(1)), ElementsAre("admit 1", "commit 1 g1 10.0.0.1:30000"));
  EXPECT_THAT(ComeAgain(job, 2, 1, Ran(2)), ElementsAre("admit 2", "commit 2 g1 10.0.0.1:30000"));
  EXPECT_THAT(job.Wait(200 * kSecond, {1, 2}), IsEmpty());
  EXPECT_EQ(job.machine_.generation(), Generation(1));
  EXPECT_EQ(job.machine_.restarts_used(), 0);
  EXPECT_THAT(job.history_, IsEmpty());
}

TEST(JobTakenOver, MemberThatDoesNotComeAgainIsLost) {
  Job before(KeptSpec(1, 2, 3));
  before.RunTwo();
  Job job(SuccessorSpec(1, 2, 3), before);
  job.Step(job::TimerDue{});
  ComeAgain(job, 1, 1, Ran(1));
  EXPECT_THAT(job.Wait(9 * kSecond, {1}), IsEmpty());
  EXPECT_THAT(job.Wait(2 * kSecond, {1}), ElementsAre("stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.history_.front(), Eq("lost node-2 lost its stream and did not reconnect within "
                                       "10.0 s"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 1 restart 1"));
}

// See Note [A record that is behind]: its successor knows generation 1, and the nodes run another.

/// Both nodes come again with workers of generation `held`, which end. That alone is not charged.
void ExpectThatAllStartAnew(Job& job, uint64_t held, int charged = 0) {
  job.Step(job::TimerDue{});
  for (const uint64_t who : {1, 2}) {
    ComeAgain(job, who, held, Ran(who));
  }
  job.Wait(kSecond, {1, 2});
  for (const uint64_t who : {1, 2}) {
    job.Say(who, held, WorkersStopped{});
  }
  EXPECT_EQ(job.machine_.phase(), job::Phase::kPreparing) << job.machine_.reason();
  EXPECT_EQ(job.machine_.generation(), Generation(held + 1));
  EXPECT_EQ(job.machine_.nodes().size(), 2u);
  EXPECT_EQ(job.machine_.restarts_used(), charged);
}

TEST(JobTakenOver, NodesThatRunANewerWorldThanTheRecordsStartAnew) {
  Job before(KeptSpec(2, 2, 0));
  before.RunTwo();
  Job job(SuccessorSpec(2, 2, 0), before);
  ExpectThatAllStartAnew(job, 2);
}

TEST(JobTakenOver, NodesThatRunANewerWorldThanTheOneThatTheRecordStopsStartAnew) {
  Job before(KeptSpec(2, 2, 3));
  before.RunTwo();
  before.Exit(1, 1, 0, 1);
  ASSERT_EQ(before.machine_.phase(), job::Phase::kStopping);
  Job job(SuccessorSpec(2, 2, 3), before);
  ExpectThatAllStartAnew(job, 2, /*charged=*/1);  // For the failure.
}

TEST(JobTakenOver, NodesWhoseWorkersRunInAWorldThatTheRecordPreparesStartAnew) {
  Job before(KeptSpec(2, 2, 0));
  before.Join(1);
  before.Join(2);
  ASSERT_EQ(before.machine_.phase(), job::Phase::kPreparing);
  Job job(SuccessorSpec(2, 2, 0), before);
  ExpectThatAllStartAnew(job, 1);
}

/// Who goes on for a launcher that shared a process with an agent.
TEST(JobTakenOver, AgentThatDiedWithTheCoordinatorIsNotWaitedFor) {
  JobSpec spec = KeptSpec(1, 2, 3);
  spec.may_be_taken_over = false;
  spec.has_standby = true;
  Job before(spec);
  before.RunTwo();
  Job job(SuccessorSpec(1, 2, 3), before);
  job.Step(job::TimerDue{});
  EXPECT_THAT(job.Step(job::AgentDied{Incarnation(2)}), ElementsAre("stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.history_.front(),
              Eq("lost node-2 ended with the launcher that hosted the coordinator"));
  EXPECT_THAT(job.Step(job::AgentDied{Incarnation(2)}), IsEmpty());
  EXPECT_THAT(ComeAgain(job, 1, 1, Ran(1)), ElementsAre("admit 1", "stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 1 restart 1"));
}

/// Or the end of a job of thousands of nodes would write as many records of all of them.
TEST(JobTakenOver, NodesThatLeaveAtTheEndChangeNoRecord) {
  Job job(KeptSpec(2, 2, 0));
  job.RunTwo();
  for (const uint64_t who : {1, 2}) {
    job.Exit(who, 1, 0, 0);
    job.Exit(who, 1, 1, 0);
  }
  ASSERT_TRUE(job.machine_.outcome().has_value());
  job.record_.reset();
  job.Say(1, 1, AgentLeft{});
  EXPECT_FALSE(job.record_.has_value());
}

TEST(JobTakenOver, AgentsNeedNotKnowOfAStandby) {
  JobSpec spec = KeptSpec(1, 1, 0);
  spec.may_be_taken_over = false;
  spec.has_standby = true;
  EXPECT_FALSE(AdmissionOf(spec).may_be_taken_over);
}

TEST(JobTakenOver, AgentThatDiedOfAJobThatIsOverIsNotWaitedFor) {
  Job before(KeptSpec(2, 2, 0));
  before.RunTwo();
  before.Exit(1, 1, 0, 0);
  before.Exit(1, 1, 1, 0);
  before.Exit(2, 1, 0, 0);
  before.Exit(2, 1, 1, 0);
  ASSERT_TRUE(before.machine_.outcome().has_value());
  Job job(SuccessorSpec(2, 2, 0), before);
  job.Step(job::TimerDue{});
  job.Step(job::AgentDied{Incarnation(2)});
  EXPECT_THAT(ComeAgain(job, 1, 1, {}), ElementsAre("release 1 0"));
  job.Say(1, 1, AgentLeft{});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kFinished);
}

TEST(JobTakenOver, WorldThatWasPreparingIsOrderedAgain) {
  Job before(KeptSpec(2, 2, 0));
  before.Join(1);
  before.Join(2);
  before.Prepared(1, 1);
  Job job(SuccessorSpec(2, 2, 0), before);
  job.Step(job::TimerDue{});
  EXPECT_THAT(ComeAgain(job, 1, 1, {AgentPrepared{StoreEndpoint{"10.0.0.1", 30000}}}),
              ElementsAre("admit 1", "prepare 1 g1 rank 0 of 2 restart 0"));
  EXPECT_THAT(ComeAgain(job, 2, 0, {}),
              ElementsAre("admit 2", "prepare 2 g1 rank 1 of 2 restart 0"));
  EXPECT_THAT(job.Say(2, 1, AgentPrepared{}),
              ElementsAre("commit 1 g1 10.0.0.1:30000", "commit 2 g1 10.0.0.1:30000"));
}

TEST(JobTakenOver, StopGoesOnAndIsChargedOnce) {
  Job before(KeptSpec(2, 2, 1));
  before.RunTwo();
  before.Exit(1, 1, 0, 7);
  ASSERT_EQ(before.machine_.phase(), job::Phase::kStopping);
  Job job(SuccessorSpec(2, 2, 1), before);
  job.Step(job::TimerDue{});
  std::vector<AgentMessage> failed = Ran(1);
  failed.push_back(Ended(0, 7));
  EXPECT_THAT(ComeAgain(job, 1, 1, failed), ElementsAre("admit 1", "stop 1 g1 signal 15 grace 2"));
  job.Say(1, 1, WorkersStopped{});
  ComeAgain(job, 2, 1, Ran(2));
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                           "prepare 2 g2 rank 1 of 2 restart 1"));
  EXPECT_EQ(job.machine_.restarts_used(), 1);
}

TEST(JobTakenOver, RootCauseIsToldAgain) {
  Job before(KeptSpec(2, 2, 0));
  before.RunTwo();
  before.Exit(1, 1, 0, 7);
  Job job(SuccessorSpec(2, 2, 0), before);
  job.Step(job::TimerDue{});
  std::vector<AgentMessage> failed = Ran(1);
  failed.push_back(Ended(0, 7));
  ComeAgain(job, 1, 1, failed);
  job.Say(1, 1, WorkersStopped{});
  ComeAgain(job, 2, 1, Ran(2));
  job.Say(2, 1, WorkersStopped{});
  ASSERT_TRUE(job.machine_.outcome().has_value());
  ASSERT_TRUE(job.machine_.outcome()->failure.has_value());
  EXPECT_EQ(job.machine_.outcome()->failure->root.what, "rank 0 exited with 7");
}

TEST(JobTakenOver, SecondFailureDoesNotGetTheFirstOnesRestart) {
  Job before(KeptSpec(2, 2, 1));
  before.RunTwo();
  before.Exit(1, 1, 0, 7);
  before.Say(1, 1, WorkersStopped{});
  before.Say(2, 1, WorkersStopped{});
  before.Start(2, {1, 2});
  Job job(SuccessorSpec(2, 2, 1), before);
  job.Step(job::TimerDue{});
  ComeAgain(job, 1, 2, Ran(1));
  ComeAgain(job, 2, 2, Ran(2));
  job.Exit(2, 2, 0, 7);
  job.Say(1, 2, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 2, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
}

TEST(JobTakenOver, OperatorsStopIsNotForgotten) {
  Job before(KeptSpec(2, 2, 3));
  before.RunTwo();
  before.Step(job::OperatorStop{SIGINT});
  Job job(SuccessorSpec(2, 2, 3), before);
  job.Step(job::TimerDue{});
  ComeAgain(job, 1, 1, Ran(1));
  ComeAgain(job, 2, 1, Ran(2));
  // The next signal is the second one.
  EXPECT_THAT(job.Step(job::OperatorStop{SIGINT}),
              ElementsAre("stop 1 g1 signal 2 grace 0", "stop 2 g1 signal 2 grace 0"));
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  ASSERT_TRUE(job.machine_.outcome().has_value());
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
  EXPECT_TRUE(job.machine_.outcome()->grace_cut_short);
}

TEST(JobTakenOver, WhatEndedMeanwhileCounts) {
  Job before(KeptSpec(2, 2, 0));
  before.RunTwo();
  Job job(SuccessorSpec(2, 2, 0), before);
  job.Step(job::TimerDue{});
  for (const uint64_t who : {1, 2}) {
    std::vector<AgentMessage> ended = Ran(who);
    ended.insert(ended.end(), {Ended(0, 0), Ended(1, 0), WorkersStopped{}});
    ComeAgain(job, who, 1, ended);
  }
  ASSERT_TRUE(job.machine_.outcome().has_value());
  EXPECT_EQ(job.machine_.outcome()->exit_code, 0);
}

TEST(JobTakenOver, NodeThatEndedWellAndLeftCounts) {
  Job before(KeptSpec(1, 2, 0));
  before.RunTwo();
  before.Exit(2, 1, 0, 0);
  before.Exit(2, 1, 1, 0);
  before.Say(2, 1, AgentLeft{SIGTERM, false});
  ASSERT_EQ(before.machine_.phase(), job::Phase::kRunning);
  Job job(SuccessorSpec(1, 2, 0), before);
  job.Step(job::TimerDue{});
  std::vector<AgentMessage> ended = Ran(1);
  ended.insert(ended.end(), {Ended(0, 0), Ended(1, 0)});
  ComeAgain(job, 1, 1, ended);
  ASSERT_TRUE(job.machine_.outcome().has_value());
  EXPECT_EQ(job.machine_.outcome()->exit_code, 0);
}

TEST(JobTakenOver, EndIsToldToWhoHasNotHeardIt) {
  Job before(KeptSpec(2, 2, 0));
  before.RunTwo();
  before.Exit(1, 1, 0, 7);
  before.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(before.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  Job job(SuccessorSpec(2, 2, 0), before);
  EXPECT_THAT(job.Step(job::TimerDue{}), IsEmpty());
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("release 2 1"));
  EXPECT_THAT(job.Join(3), ElementsAre("release 3 1"));
  job.Say(2, 1, AgentLeft{});
  EXPECT_THAT(job.Wait(11 * kSecond), ElementsAre("finish 1"));
  ASSERT_TRUE(job.finished_->failure.has_value());
  EXPECT_EQ(job.finished_->failure->root.what, "rank 0 exited with 7");
}

TEST(JobTakenOver, EndThatAllHaveHeardIsTheEndAtOnce) {
  Job before(KeptSpec(1, 1, 0));
  before.Join(1);
  before.Start(1, {1});
  before.Exit(1, 1, 0, 0);
  before.Exit(1, 1, 1, 0);
  before.Say(1, 0, AgentLeft{});
  ASSERT_EQ(before.machine_.phase(), job::Phase::kFinished);
  Job job(SuccessorSpec(1, 1, 0), before);
  EXPECT_THAT(job.Step(job::TimerDue{}), ElementsAre("finish 0"));
}

TEST(JobTakenOver, PauseBeforeARestartIsNotForgotten) {
  JobSpec spec = KeptSpec(1, 2, 3);
  spec.restart_backoff = spec.max_restart_backoff = 30 * kSecond;
  Job paused(spec);
  paused.RunTwo();
  paused.Exit(1, 1, 0, 7);
  paused.Say(1, 1, WorkersStopped{});
  paused.Say(2, 1, WorkersStopped{});
  ASSERT_TRUE(paused.machine_.is_pausing());
  Job job(spec, paused);
  job.Step(job::TimerDue{});
  EXPECT_TRUE(job.machine_.is_pausing());
  job.Join(1, {}, 0);
  job.Join(2, {}, 0);
  EXPECT_THAT(job.Wait(29 * kSecond, {1, 2}), IsEmpty());
  EXPECT_THAT(job.Wait(2 * kSecond, {1, 2}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                         "prepare 2 g2 rank 1 of 2 restart 1"));
}

TEST(JobTakenOver, NodeThatSaidThatItLeavesIsNoFailure) {
  Job before(KeptSpec(1, 2, 0));
  before.RunTwo();
  before.Say(1, 1, AgentLeft{SIGTERM, true});
  before.Say(2, 1, AgentLeft{SIGTERM, true});
  Job job(SuccessorSpec(1, 2, 0), before);
  job.Step(job::TimerDue{});
  job.Wait(11 * kSecond);  // Both have ended meanwhile.
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
  EXPECT_EQ(job.machine_.restarts_used(), 0);
  EXPECT_EQ(job.machine_.membership_changes(), 1);
}

TEST(JobTakenOver, SurvivorsOfTheLastWorldAreWaitedFor) {
  JobSpec spec = KeptSpec(1, 3, 3);
  spec.restart_backoff = spec.max_restart_backoff = kSecond;
  spec.last_call = kSecond;
  Job before(spec);
  before.Join(1);
  before.Join(2);
  before.Wait(2 * kSecond, {1, 2});
  before.Start(1, {1, 2});
  before.Exit(1, 1, 0, 7);
  before.Say(1, 1, WorkersStopped{});
  before.Say(2, 1, WorkersStopped{});
  ASSERT_TRUE(before.machine_.is_pausing());
  Job job(spec, before);
  job.Step(job::TimerDue{});
  job.Join(1);
  EXPECT_THAT(job.Wait(5 * kSecond, {1}), IsEmpty());
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "prepare 1 g2 rank 0 of 2 restart 1",
                                       "prepare 2 g2 rank 1 of 2 restart 1"));
}

TEST(JobTakenOver, NoGenerationIsUsedTwice) {
  Job before(KeptSpec(1, 1, 3));
  before.Join(1);
  before.Start(1, {1});
  before.Exit(1, 1, 0, 7);
  before.Say(1, 1, WorkersStopped{});  // Generation 2 is ordered.
  Job job(SuccessorSpec(1, 1, 3), before);
  job.Step(job::TimerDue{});
  EXPECT_THAT(job.Wait(11 * kSecond), IsEmpty());  // Its only node never comes again.
  EXPECT_THAT(job.Join(9), ElementsAre("admit 9", "prepare 9 g3 rank 0 of 1 restart 1 world 1"));
}

TEST(JobTakenOver, LaunchIsThatOfTheFirst) {
  Job before(KeptSpec(1, 1, 3));
  before.Join(1);
  Job job(SuccessorSpec(1, 1, 3), before);
  job.Step(job::TimerDue{});
  ASSERT_TRUE(job.record_.has_value());
  EXPECT_EQ(job.record_->launch_id, "first");
  EXPECT_EQ(job.record_->world.members.front().assignment.launch_id, "first");
}

TEST(JobTakenOver, SuccessorsSuccessorKnowsTheSame) {
  Job before(KeptSpec(2, 2, 3));
  before.RunTwo();
  Job second(SuccessorSpec(2, 2, 3), before);
  second.Step(job::TimerDue{});
  Job third(SuccessorSpec(2, 2, 3), second);
  third.Step(job::TimerDue{});
  ComeAgain(third, 1, 1, Ran(1));
  ComeAgain(third, 2, 1, Ran(2));
  EXPECT_THAT(third.Wait(200 * kSecond, {1, 2}), IsEmpty());
  EXPECT_EQ(third.machine_.generation(), Generation(1));
}

TEST(JobTakenOver, AgentsAreToldThatTheyMayWait) {
  Job kept(KeptSpec(1, 1, 0));
  const job::Effects effects = kept.machine_.Step(
      FromAgent{Incarnation(1), {}, AgentJoined{.node = {.incarnation = Incarnation(1)}}},
      kept.now_);
  EXPECT_TRUE(std::get<AdmitAgent>(effects.messages.front().message).may_be_taken_over);
  EXPECT_FALSE(AdmissionOf(Spec(1, 1, 0)).may_be_taken_over);
}

TEST(JobTakenOver, JobThatIsNotKeptHasShortRecords) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  ASSERT_TRUE(job.record_.has_value());
  EXPECT_THAT(job.record_->nodes, IsEmpty());
  EXPECT_THAT(job.record_->world.members, IsEmpty());
}

}  // namespace
}  // namespace fsdprun
