// Why a world is stopped, and what that costs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A worker that ended after its node had sent it a stop signal.
WorkerExited Stopped(int local_rank, int code, int signal = 0) {
  WorkerExit exit;
  exit.local_rank = exit.rank = local_rank;
  exit.exit_code = code;
  exit.signal = signal;
  exit.after_stop = true;
  exit.killed_by_us = signal != 0;
  return WorkerExited{exit};
}

/// One node runs generation 1 and is being stopped since a second one has joined.
Job Growing() {
  Job job(Spec(1, 2, 3));
  job.Join(1);
  job.Wait(std::chrono::seconds(31), {1});
  job.Start(1, {1});
  EXPECT_THAT(job.Join(2), Contains("stop 1 g1 signal 15 grace 30"));
  return job;
}

TEST(JobStopTest, WorkerThatTheStopEndsIsNoFailure) {
  Job job = Growing();
  EXPECT_THAT(job.Say(1, 1, Stopped(0, 1)), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              Contains("prepare 1 g2 rank 0 of 2 restart 0 world 1"));
}

TEST(JobStopTest, RestartThatAnOperatorAsksForIsFreeOfCharge) {
  Job job(Spec(2, 2, 0));
  EXPECT_THAT(job.Step(job::RestartAsked{}), IsEmpty());  // Nothing runs.
  job.RunTwo();
  EXPECT_THAT(job.Step(job::RestartAsked{}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Step(job::RestartAsked{}), IsEmpty());  // It is being done.
  job.Say(1, 1, Stopped(0, 0, SIGTERM));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 2 g2 rank 1 of 2 restart 0 world 1"));
  EXPECT_EQ(job.machine_.membership_changes(), 1);
}

TEST(JobStopTest, WorkerThatFailsBeforeTheStopReachesItIsCharged) {
  Job job = Growing();
  EXPECT_THAT(job.Exit(1, 1, 0, 7), ElementsAre("stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), Contains("prepare 1 g2 rank 0 of 2 restart 1"));
}

TEST(JobStopTest, SignalOfTheNodesOwnEndsARunningWorld) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  EXPECT_THAT(job.Say(2, 1, Stopped(0, 0, SIGTERM)),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("rank 0 died of signal 15 on node-2"));
}

TEST(JobStopTest, NodeThatAnOperatorStopsEndsTheWorldUncharged) {
  Job job(Spec(1, 2, 0));
  job.RunTwo();
  EXPECT_THAT(job.Say(2, 1, AgentLeft{SIGINT, true}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30"));
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("node-2 left on signal 2"));
  job.Say(2, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, AgentLeft{SIGINT, false}), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 1 restart 0 world 1"));
}

TEST(JobStopTest, OutcomeTellsHowTheWorkersHaveEnded) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(1, 1, 0, 0);
  job.Step(job::OperatorStop{SIGTERM});
  job.Say(1, 1, Stopped(1, 0, SIGKILL));
  job.Say(2, 1, Stopped(0, 1));
  job.Say(2, 1, Stopped(1, 0, SIGKILL));
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.outcome()->ends,
            (WorkerEnds{.workers = 4,
                        .well = 1,
                        .killed = 2,
                        .failed = 1,
                        .notes = {"rank 1 was killed on node-1", "rank 0 exited with 1 on node-2",
                                  "rank 1 was killed on node-2"}}));
}

/// Two nodes of an allocation, whose workers all end with 0 after a signal.
OutcomeKind KindAfterSignal(bool is_scheduled, int64_t step) {
  JobSpec spec = Spec(2, 2, 0);
  if (is_scheduled) {
    spec.signalled_together = {"node-1", "node-2"};
  }
  Job job(spec);
  job.RunTwo();
  job.Say(1, 1, AgentHeartbeat{{.step = step, .total = 10}});
  job.Step(job::OperatorStop{SIGUSR1});
  for (const uint64_t who : {1, 2}) {
    job.Say(who, 1, Stopped(0, 0));
    job.Say(who, 1, Stopped(1, 0));
    job.Say(who, 1, WorkersStopped{});
  }
  return job.machine_.outcome()->kind;
}

TEST(JobStopTest, SchedulersSignalAfterTheLastStepDoesNotUndoTheSuccess) {
  EXPECT_EQ(KindAfterSignal(true, 10), OutcomeKind::kSucceeded);
  EXPECT_EQ(KindAfterSignal(true, 9), OutcomeKind::kStoppedBySignal);
  EXPECT_EQ(KindAfterSignal(false, 10), OutcomeKind::kStoppedBySignal);
}

TEST(JobStopTest, LastStepOfAnEarlierWorldIsNotThisOnes) {
  JobSpec spec = Spec(2, 2, 1);
  spec.signalled_together = {"node-1", "node-2"};
  Job job(spec);
  job.RunTwo();
  job.Say(1, 1, AgentHeartbeat{{.step = 10, .total = 10}});
  job.Exit(2, 1, 0, 7);
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  job.Start(2, {1, 2});
  job.Step(job::OperatorStop{SIGUSR1});
  for (const uint64_t who : {1, 2}) {
    job.Say(who, 2, Stopped(0, 0));
    job.Say(who, 2, Stopped(1, 0));
    job.Say(who, 2, WorkersStopped{});
  }
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
}

TEST(JobStopTest, SignalToAnAgentOfAnotherAllocationIsItsOwnAffair) {
  JobSpec spec = Spec(1, 2, 0);
  spec.signalled_together = {"node-1"};
  Job job(spec);
  job.RunTwo();
  job.Say(2, 1, AgentLeft{SIGTERM, true});
  job.Say(2, 1, WorkersStopped{});
  job.Say(2, 1, AgentLeft{SIGTERM, false});
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 1 restart 0 world 1"));
}

TEST(JobStopTest, SignalToAnAgentThatComesAfterTheWorkersHaveEndedIsKnown) {
  JobSpec spec = Spec(2, 2, 0);
  spec.signalled_together = {"node-1", "node-2"};
  Job job(spec);
  job.RunTwo();
  for (const uint64_t who : {1, 2}) {
    job.Exit(who, 1, 0, 0);
    job.Exit(who, 1, 1, 0);
  }
  job.Say(1, 1, AgentLeft{SIGUSR1, false});
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kSucceeded);
  EXPECT_EQ(job.machine_.operator_signal(), SIGUSR1);
}

TEST(JobStopTest, FailureShortensTheGraceOfAMembershipChange) {
  Job job(Spec(1, 3, 1));
  job.Join(1);
  job.Join(2);
  EXPECT_THAT(job.Wait(std::chrono::seconds(31), {1, 2}), Contains(HasSubstr("prepare 1 g1")));
  job.Start(1, {1, 2});
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3", "stop 1 g1 signal 15 grace 30",
                                       "stop 2 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Exit(2, 1, 0, 7),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.restarts_used(), 1);
}

/// Two nodes run generation 1 and are being drained since a third one has joined.
Job GrowingFromTwo() {
  Job job(Spec(1, 3, 1));
  job.Join(1);
  job.Join(2);
  job.Wait(std::chrono::seconds(31), {1, 2});
  job.Start(1, {1, 2});
  EXPECT_THAT(job.Join(3), Contains("stop 1 g1 signal 15 grace 30"));
  return job;
}

TEST(JobStopTest, NodeLostDuringADrainEndsItsGraceAndIsCharged) {
  Job job = GrowingFromTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(300), {1, 3}),
              ElementsAre("stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), Contains("prepare 1 g2 rank 0 of 2 restart 1"));
}

TEST(JobStopTest, NodeLostAfterItsWorkersWereDrainedIsNotCharged) {
  Job job = GrowingFromTwo();
  job.Say(2, 1, WorkersStopped{});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(300), {1, 3}), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              Contains("prepare 1 g2 rank 0 of 2 restart 0 world 1"));
}

TEST(JobStopTest, ForeignKillDuringADrainEndsItsGrace) {
  Job job = GrowingFromTwo();
  WorkerExited killed = Stopped(0, 0, SIGKILL);
  killed.exit.killed_by_us = false;
  EXPECT_THAT(job.Say(2, 1, killed),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
}

TEST(JobStopTest, FailureLeavesAnOperatorsStopItsGrace) {
  Job job(Spec(2, 2, 1));
  job.RunTwo();
  EXPECT_THAT(job.Step(job::OperatorStop{SIGTERM}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Exit(2, 1, 0, 7), IsEmpty());
  EXPECT_THAT(job.Step(job::AgentStreamLost{Incarnation(2)}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(300), {1}), IsEmpty());
}

TEST(JobStopTest, StatusTellsWhoIsLeftAndForHowLong) {
  Job job(Spec(2, 2, 1));
  job.RunTwo();
  EXPECT_FALSE(job.machine_.stop().has_value());
  job.Step(job::OperatorStop{SIGINT});
  const MonoTime kill_at = job.now_ + std::chrono::seconds(30);
  job.Wait(std::chrono::seconds(5), {1, 2});
  job.Say(2, 1, Stopped(1, 0));
  const auto stop = job.machine_.stop();
  ASSERT_TRUE(stop.has_value());
  EXPECT_EQ(stop->operator_signal, SIGINT);
  EXPECT_FALSE(stop->is_after_failure);
  EXPECT_EQ(stop->grace, std::chrono::seconds(30));
  EXPECT_EQ(stop->kill_at, kill_at);
  ASSERT_EQ(stop->left.size(), 2u);
  EXPECT_EQ(stop->left[0].workers, 2);
  EXPECT_EQ(stop->left[1].name, "node-2");
  EXPECT_EQ(stop->left[1].workers, 1);
  job.Say(1, 1, WorkersStopped{});
  ASSERT_EQ(job.machine_.stop()->left.size(), 1u);
  job.Say(2, 1, WorkersStopped{});
  EXPECT_FALSE(job.machine_.stop().has_value());
}

TEST(JobStopTest, StatusFollowsAFailureThatShortensTheGrace) {
  Job job = GrowingFromTwo();
  EXPECT_EQ(job.machine_.stop()->operator_signal, 0);
  EXPECT_THAT(std::string(job.machine_.stop()->why), HasSubstr("joins a world of 2"));
  job.Wait(std::chrono::seconds(1), {1, 2, 3});
  job.Exit(2, 1, 0, 7);
  EXPECT_TRUE(job.machine_.stop()->is_after_failure);
  EXPECT_EQ(job.machine_.stop()->kill_at, job.now_ + std::chrono::seconds(2));
}

TEST(JobStopTest, LateShorterGraceDoesNotPutTheKillOff) {
  JobSpec spec = Spec(1, 3, 1);
  spec.last_call = {};
  spec.stop_grace = std::chrono::seconds(3);
  Job job(spec);
  job.Join(1);
  job.Wait(std::chrono::milliseconds(1), {1});
  job.Start(1, {1});
  job.Join(2);
  job.Join(3);
  const MonoTime kill_at = job.machine_.stop()->kill_at;
  job.Wait(std::chrono::seconds(2), {1, 2, 3});
  job.Exit(1, 1, 0, 7);
  EXPECT_EQ(job.machine_.stop()->kill_at, kill_at);
}

TEST(JobStopTest, OnlyASecondSignalCutsTheGraceShort) {
  for (const int signals : {1, 2}) {
    JobSpec spec = Spec(2, 2, 1);
    spec.stop_grace = {};
    Job job(spec);
    job.RunTwo();
    for (int i = 0; i < signals; ++i) {
      job.Step(job::OperatorStop{SIGINT});
    }
    job.Say(1, 1, WorkersStopped{});
    job.Say(2, 1, WorkersStopped{});
    EXPECT_EQ(job.machine_.outcome()->grace_cut_short, signals == 2);
  }
}

TEST(JobStopTest, AbortIsNeverSlowerThanADrain) {
  JobSpec spec = Spec(2, 2, 1);
  spec.stop_grace = std::chrono::seconds(1);
  Job job(spec);
  job.RunTwo();
  EXPECT_THAT(job.Exit(2, 1, 0, 7),
              ElementsAre("stop 1 g1 signal 15 grace 1", "stop 2 g1 signal 15 grace 1"));
}

TEST(JobStopTest, AgentThatLeavesWithoutASignalIsToldSo) {
  Job job(Spec(3, 3, 0));
  job.Join(1);
  job.Join(2);
  job.Say(2, 0, AgentLeft{});
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr(": node-2 (left)"));
}

TEST(JobStopTest, HostThatWasReplacedFormsNoWorldAnyMore) {
  Job job(Spec(1, 2, 3));
  job.Join(1);
  job.Wait(std::chrono::seconds(31), {1});
  job.Start(1, {1});
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}), IsEmpty());
  EXPECT_THAT(job.Step(job::HostReplaced{"taken again"}), IsEmpty());
  EXPECT_THAT(job.Join(2), ElementsAre("reject 2: this job takes no more nodes: taken"));
  EXPECT_THAT(job.Exit(1, 1, 0, 1), ElementsAre("stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("release 1 1"));
  EXPECT_THAT(job.Say(1, 1, AgentLeft{}), ElementsAre("finish 1"));
  EXPECT_EQ(job.finished_->kind, OutcomeKind::kFailed);
  EXPECT_EQ(job.finished_->reason, "taken");
  EXPECT_EQ(job.finished_->failure->root.kind, CauseKind::kNodeLost);
}

TEST(JobStopTest, NodesWithoutAPartAreSentAwayByAHostThatWasReplaced) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3"));
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}),
              ElementsAre("reject 3: this job takes no more nodes: taken"));
  EXPECT_THAT(job.Join(3), ElementsAre("reject 3: this job takes no more nodes: taken"));
  EXPECT_THAT(job.Join(4, {}, 9), ElementsAre("reject 4: this job takes no more nodes: taken"));
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
}

TEST(JobStopTest, DrainOfAHostThatWasReplacedKeepsItsGrace) {
  Job job = Growing();
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}),
              ElementsAre("reject 2: this job takes no more nodes: taken"));
  EXPECT_EQ(job.machine_.stop()->grace, std::chrono::seconds(30));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("release 1 1"));
  EXPECT_EQ(job.machine_.outcome()->reason, "taken");
}

TEST(JobStopTest, HostThatWasReplacedStartsNoWorkersOfAWorldThatItPrepares) {
  Job job(Spec(2, 2, 3));
  job.Join(1);
  job.Join(2);
  job.Prepared(1, 1);
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_EQ(job.machine_.outcome()->reason, "taken");
}

TEST(JobStopTest, HostThatWasReplacedWhileItsJobWaitsEndsAtOnce) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::seconds(1), {1});
  job.Say(1, 1, WorkersStopped{});
  ASSERT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}), ElementsAre("release 1 1"));
  EXPECT_EQ(job.machine_.outcome()->reason, "taken");
}

TEST(JobStopTest, AnOperatorsStopOfAHostThatWasReplacedKeepsItsGrace) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  job.Step(job::OperatorStop{SIGTERM});
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}), IsEmpty());
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
}

TEST(JobStopTest, SpareThatAnOperatorStopsLeavesTheWorldAlone) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Join(3);
  EXPECT_THAT(job.Say(3, 0, AgentLeft{SIGINT, true}), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
}

TEST(JobStopTest, DepartingNodeDoesNotHoldUpTheNextWorld) {
  Job job(Spec(1, 3, 0));
  for (const uint64_t who : {1, 2, 3}) {
    job.Join(who);
  }
  job.Start(1, {1, 2, 3});
  job.Say(3, 1, AgentLeft{SIGINT, true});
  job.Say(3, 1, WorkersStopped{});
  job.Step(job::AgentStreamLost{Incarnation(3)});
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 2 g2 rank 1 of 2 restart 0 world 1"));
}

TEST(JobStopTest, NodeThatJoinsWhileTheWorldPreparesIsTakenIn) {
  Job job(Spec(1, 2, 0));
  job.Join(1);
  EXPECT_THAT(job.Wait(std::chrono::seconds(31), {1}), Contains(HasSubstr("prepare 1 g1")));
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "stop 1 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 2 g2 rank 1 of 2 restart 0 world 1"));
}

TEST(JobStopTest, NodeThatCannotPrepareFailsTheWorldOnce) {
  Job job(Spec(2, 2, 1));
  job.Join(1);
  job.Join(2);
  const NodeFaulted fault{CauseKind::kPrepareFailed, "the disk is full"};
  EXPECT_THAT(job.Say(2, 1, fault),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  job.Say(2, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, fault), IsEmpty());  // repeated on a new stream
  EXPECT_THAT(job.Say(9, 1, fault), IsEmpty());  // unknown incarnation
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), Contains("prepare 1 g2 rank 0 of 2 restart 1"));
  job.Say(2, 2, fault);
  job.Say(2, 2, WorkersStopped{});
  job.Say(2, 2, fault);
  job.Say(1, 2, WorkersStopped{});
  const JobOutcome& outcome = *job.machine_.outcome();
  EXPECT_THAT(outcome.reason, HasSubstr("the disk is full"));
  EXPECT_EQ(outcome.failure->root.kind, CauseKind::kPrepareFailed);
  EXPECT_EQ(outcome.failure->other_failures, 0);
}

TEST(JobStopTest, SpareThatRejoinsWithAnOldGenerationIsCleanedFirst) {
  Job job(Spec(2, 2, 0));
  job.Join(1);
  EXPECT_THAT(job.Join(1, {}, 1), ElementsAre("admit 1", "stop 1 g1 signal 15 grace 0"));
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 0",
                                                           "prepare 2 g2 rank 1 of 2 restart 0"));
}

TEST(JobStopTest, NodeThatNeverStartsItsWorkersIsReleased) {
  Job job(Spec(1, 2, 3));
  job.Join(1);
  job.Join(2);
  job.Prepared(1, 1);
  job.Prepared(2, 1);
  job.Say(1, 1, AgentStarted{});
  EXPECT_THAT(job.Wait(std::chrono::seconds(60), {1, 2}),
              ElementsAre("release 2 1", "stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(std::string(job.machine_.reason()),
              HasSubstr("node-2 did not start its workers within 60.0 s"));
}

TEST(JobStopTest, NodeWhoseWorkersFinishedBeforeItReportedTheStartMayGo) {
  Job job(Spec(2, 2, 0));
  job.Join(1);
  job.Join(2);
  job.Prepared(1, 1);
  job.Prepared(2, 1);
  job.Say(1, 1, AgentStarted{});
  job.Exit(2, 1, 0, 0);
  job.Exit(2, 1, 1, 0);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::seconds(1), {1}), IsEmpty());
  EXPECT_EQ(job.machine_.nodes().size(), 1u);
  job.Exit(1, 1, 0, 0);
  EXPECT_THAT(job.Exit(1, 1, 1, 0), ElementsAre("release 1 0"));
}

TEST(JobStopTest, WorkersThatTheStopHasEndedAreToldOfTogether) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(1, 1, 0, 3);
  WorkersEnded ended;
  for (const int local_rank : {0, 1}) {
    WorkerExit exit;
    exit.local_rank = exit.rank = local_rank;
    exit.signal = SIGTERM;
    exit.after_stop = exit.killed_by_us = true;
    ended.exits.push_back(exit);
  }
  job.Say(2, 1, ended);
  job.Say(2, 1, ended);  // Repeated.
  EXPECT_EQ(job.machine_.stop()->left.size(), 2u);
  EXPECT_EQ(job.machine_.stop()->left[1].workers, 0);
  job.Say(2, 1, WorkersStopped{});
  job.Say(1, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.outcome()->failure->collateral, 2);
  EXPECT_EQ(job.machine_.outcome()->failure->root.worker->exit_code, 3);
}

}  // namespace
}  // namespace fsdprun
