#include "launcher/coordinator/job_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobMachineTest, AllNodesOfAWorldGetTheLaunchId) {
  JobSpec spec;
  spec.launch_id = "12ab34cd";
  spec.min_nodes = spec.max_nodes = 2;
  JobMachine machine(spec);
  std::vector<std::string> ids;
  for (const uint64_t who : {1, 2}) {
    NodeInfo node;
    node.incarnation = Incarnation(who);
    const job::Effects effects = machine.Step(
        FromAgent{Incarnation(who), Generation{}, AgentJoined{node, Generation{}, {}}}, MonoTime{});
    for (const ToAgent& order : effects.messages) {
      if (const auto* prepare = std::get_if<PrepareGeneration>(&order.message)) {
        ids.push_back(prepare->assignment.launch_id);
      }
    }
  }
  EXPECT_THAT(ids, ElementsAre("12ab34cd", "12ab34cd"));
}

TEST(JobMachineTest, RecordOfAGenerationComesWithItsFirstMessage) {
  Job job(Spec(2, 2, 1));
  job.Join(1);
  EXPECT_EQ(job.record_, std::nullopt);
  job.Join(2);
  ASSERT_TRUE(job.record_.has_value());
  EXPECT_EQ(job.record_->generation, Generation(1));
  job.Start(1, {1, 2});
  job.record_.reset();
  job.Exit(1, 1, 0, 1);
  EXPECT_EQ(job.record_, std::nullopt);
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  ASSERT_TRUE(job.record_.has_value());
  EXPECT_EQ(job.record_->generation, Generation(2));
  EXPECT_EQ(job.record_->budgets.restarts_used, 1);
  EXPECT_FALSE(job.record_->is_over);
  job.Step(job::OperatorStop{15});
  job.Say(1, 2, WorkersStopped{});
  job.Say(2, 2, WorkersStopped{});
  EXPECT_TRUE(job.record_->is_over);
}

TEST(JobMachineTest, ChargedRestartIsRecordedBeforeTheNextWorld) {
  Job job(Spec(2, 2, 1));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);
  job.Say(1, 1, WorkersStopped{});
  job.Step(job::AgentStreamLost{Incarnation(1)});
  job.Say(2, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
  EXPECT_EQ(job.record_->generation, Generation(1));
  EXPECT_EQ(job.record_->budgets.restarts_used, 1);
}

TEST(JobMachineTest, HistoryNamesWorldsAndLosses) {
  Job job(Spec(1, 2, 1));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(300), {1});
  EXPECT_THAT(job.history_,
              ElementsAre("formed g1 of 2 nodes, 4 workers",
                          "lost node-2 lost its stream and did not reconnect within 0.2 s",
                          "stopping g1 after a failure: node node-2 lost its stream and did not "
                          "reconnect within 0.2 s"));
}

TEST(JobMachineTest, FormsAtOnceWhenCompleteRunsAndFinishes) {
  Job job(Spec(2, 2, 0));
  EXPECT_THAT(job.Join(1), ElementsAre("admit 1"));
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "prepare 1 g1 rank 0 of 2 restart 0",
                                       "prepare 2 g1 rank 1 of 2 restart 0"));
  EXPECT_THAT(job.Prepared(2, 1), IsEmpty());
  EXPECT_THAT(job.Prepared(1, 1),
              ElementsAre("commit 1 g1 10.0.0.1:30000", "commit 2 g1 10.0.0.1:30000"));
  job.Exit(1, 1, 0, 0);
  job.Exit(1, 1, 1, 0);
  job.Exit(2, 1, 1, 0);
  EXPECT_THAT(job.Exit(2, 1, 0, 0), ElementsAre("release 1 0", "release 2 0"));
  job.Say(1, 1, AgentLeft{});
  EXPECT_THAT(job.Say(2, 1, AgentLeft{}), ElementsAre("finish 0"));
  EXPECT_EQ(job.finished_->kind, OutcomeKind::kSucceeded);
}

TEST(JobMachineTest, LastCallRunsOnlyBetweenMinAndMax) {
  Job job(Spec(1, 3, 0));
  job.Join(1);
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
  job.Wait(std::chrono::seconds(29), {1});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
  job.Wait(std::chrono::seconds(2), {1});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kPreparing);
}

TEST(JobMachineTest, JoinTimeoutNamesHowManyAndWhoIsMissing) {
  JobSpec spec = Spec(3, 3, 0);
  spec.join_timeout = std::chrono::seconds(5);
  Job job(spec);
  job.Join(1, 0);
  job.Join(2, 2);
  EXPECT_THAT(job.Wait(std::chrono::seconds(6), {1, 2}),
              ElementsAre("release 1 1", "release 2 1", "finish 1"));
  EXPECT_THAT(job.finished_->reason, HasSubstr("2 of 3 joined (node-1, node-2)"));
  EXPECT_THAT(job.finished_->reason, HasSubstr("missing node rank 1"));
  EXPECT_EQ(job.finished_->failure->root.kind, CauseKind::kJoinTimeout);
}

TEST(JobMachineTest, LossDuringTheLastCallBeginsTheJoinTimeoutAnew) {
  JobSpec spec = Spec(2, 3, 0);
  spec.join_timeout = std::chrono::seconds(5);
  Job job(spec);
  job.Join(1);
  job.Wait(std::chrono::seconds(3), {1});
  job.Join(2);
  job.Wait(std::chrono::seconds(1), {1, 2});
  job.Say(2, 0, AgentLeft{15, false});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(4900), {1}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(200), {1}), ElementsAre("release 1 1"));
}

TEST(JobMachineTest, SimultaneousFailuresAreChargedOnce) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Exit(2, 1, 0, 7),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Exit(1, 1, 0, 7), IsEmpty());
  EXPECT_THAT(job.Exit(1, 1, 1, 9), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), IsEmpty());
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                           "prepare 2 g2 rank 1 of 2 restart 1"));
  EXPECT_EQ(job.machine_.restarts_used(), 1);
}

TEST(JobMachineTest, BudgetSpentEndsTheJobWithTheRootCause) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(2, 1, 0, 7);
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_THAT(job.Wait(std::chrono::seconds(2)), ElementsAre("finish 1"));
  EXPECT_EQ(job.finished_->failure->root.node_name, "node-2");
  EXPECT_EQ(job.finished_->failure->root.worker->exit_code, 7);
}

TEST(JobMachineTest, ConfigurationErrorIsNotRestarted) {
  Job job(Spec(2, 2, 5));
  job.RunTwo();
  job.Exit(1, 1, 0, 78);
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_EQ(job.machine_.restarts_used(), 0);
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("configuration error"));
}

TEST(JobMachineTest, CulpritWhoseNoticeComesLateIsTheCauseNotItsVictim) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);           // a victim, whose connection broke
  job.Exit(2, 1, 1, 0, SIGKILL);  // its memory took long to free
  WorkerExit collateral;
  collateral.local_rank = 0;
  collateral.signal = SIGTERM;
  collateral.after_stop = collateral.killed_by_us = true;
  job.Say(2, 1, WorkerExited{collateral});
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  const FailureReport& report = *job.machine_.outcome()->failure;
  EXPECT_EQ(report.root.worker->signal, SIGKILL);
  EXPECT_EQ(report.root.node_name, "node-2");
  EXPECT_EQ(report.other_failures, 1);
  EXPECT_EQ(report.collateral, 1);
}

TEST(JobMachineTest, StaleMessagesAreDroppedAndCounted) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  const uint64_t before = job.machine_.stale_dropped();
  EXPECT_THAT(job.Exit(2, 1, 0, 1), IsEmpty());             // of the old generation
  EXPECT_THAT(job.Prepared(2, 1), IsEmpty());               // of the old generation
  EXPECT_THAT(job.Exit(99, 2, 0, 1), IsEmpty());            // unknown incarnation
  EXPECT_THAT(job.Say(2, 9, WorkersStopped{}), IsEmpty());  // newer generation
  EXPECT_EQ(job.machine_.stale_dropped(), before + 4);
  EXPECT_EQ(job.machine_.phase(), job::Phase::kPreparing);
}

TEST(JobMachineTest, SpareIsPromotedAndAnUnusedOneIsReleasedWithZero) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3"));
  EXPECT_THAT(job.Join(4), ElementsAre("admit 4"));
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(300));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                           "prepare 3 g2 rank 1 of 2 restart 1"));
  job.Start(2, {1, 3});
  job.Exit(3, 2, 0, 78);
  job.Say(1, 2, WorkersStopped{});
  EXPECT_THAT(job.Say(3, 2, WorkersStopped{}),
              ElementsAre("release 1 1", "release 3 1", "release 4 0"));
}

TEST(JobMachineTest, JoinerGrowsTheWorldUncharged) {
  Job job(Spec(1, 3, 0));
  job.Join(1);
  job.Wait(std::chrono::seconds(31), {1});
  job.Start(1, {1});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2"));
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(200), {1}),
              ElementsAre("stop 1 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 2 g2 rank 1 of 2 restart 0 world 1"));
}

TEST(JobMachineTest, OperatorStopEndsInOrderAndTheSecondSignalEndsTheGrace) {
  Job job(Spec(2, 2, 5));
  job.RunTwo();
  EXPECT_THAT(job.Step(job::OperatorStop{SIGINT}),
              ElementsAre("stop 1 g1 signal 2 grace 30", "stop 2 g1 signal 2 grace 30"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Step(job::OperatorStop{SIGINT}), ElementsAre("stop 2 g1 signal 2 grace 0"));
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  job.Wait(std::chrono::seconds(2));
  EXPECT_EQ(job.finished_->kind, OutcomeKind::kStoppedBySignal);
  EXPECT_EQ(job.finished_->exit_code, 1);
}

TEST(JobMachineTest, SignalForWorkersReachesEachNodeOfARunningWorldAndChangesNothing) {
  Job job(Spec(2, 2, 5));
  EXPECT_THAT(job.Step(job::SignalForWorkers{SIGUSR1}), IsEmpty());
  EXPECT_THAT(job.warning_, HasSubstr("signal 10 came while no worker ran"));
  job.RunTwo();
  const uint64_t revision = job.machine_.revision();
  EXPECT_THAT(job.Step(job::SignalForWorkers{SIGUSR1}),
              ElementsAre("pass 1 g1 signal 10", "pass 2 g1 signal 10"));
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
  EXPECT_EQ(job.machine_.revision(), revision);
  job.Step(job::OperatorStop{SIGINT});
  EXPECT_THAT(job.Step(job::SignalForWorkers{SIGUSR1}), IsEmpty());
}

TEST(JobMachineTest, EarlyExitWithZeroIsNoFailureEvenIfTheNodeThenLeaves) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(2, 1, 0, 0);
  job.Exit(2, 1, 1, 0);
  job.Say(2, 1, WorkersStopped{});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::seconds(1), {1}), IsEmpty());
  job.Exit(1, 1, 0, 0);
  EXPECT_THAT(job.Exit(1, 1, 1, 0), ElementsAre("release 1 0"));
}

}  // namespace
}  // namespace fsdprun
