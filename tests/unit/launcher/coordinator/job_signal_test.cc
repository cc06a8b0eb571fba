// Signals to the agents of an allocation: for a node, or for the job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobSignalTest, SignalToTheAgentsOfAnAllocationEndsTheJob) {
  JobSpec spec = Spec(1, 2, 3);
  spec.signalled_together = {"node-1", "node-2"};
  Job job(spec);
  job.RunTwo();
  EXPECT_THAT(job.Say(2, 1, AgentLeft{SIGUSR1, true}),
              ElementsAre("stop 1 g1 signal 10 grace 30", "stop 2 g1 signal 10 grace 30"));
  EXPECT_THAT(job.Say(1, 1, AgentLeft{SIGUSR1, true}), IsEmpty());
  // The coordinator's own is the same signal; only one after it is impatience.
  EXPECT_THAT(job.Step(job::OperatorStop{SIGUSR1}), IsEmpty());
  job.Say(2, 1, WorkersStopped{});
  job.Say(2, 1, AgentLeft{SIGUSR1, false});
  EXPECT_THAT(job.Step(job::OperatorStop{SIGINT}), ElementsAre("stop 1 g1 signal 10 grace 0"));
  job.Say(1, 1, WorkersStopped{});
  job.Say(1, 1, AgentLeft{SIGUSR1, false});
  job.Wait(std::chrono::seconds(2));
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
  EXPECT_EQ(job.machine_.outcome()->signal, SIGUSR1);
}

/// Nodes 1 to n of an allocation run generation 1; two of them are enough.
Job OfAllocation(int nodes) {
  JobSpec spec = Spec(2, nodes, 3);
  std::vector<uint64_t> who;
  for (int n = 1; n <= nodes; ++n) {
    spec.signalled_together.insert("node-" + std::to_string(n));
    who.push_back(static_cast<uint64_t>(n));
  }
  Job job(spec);
  for (const uint64_t w : who) {
    job.Join(w);
  }
  job.Start(1, who);
  return job;
}

void Leave(Job& job, uint64_t who) {
  job.Say(who, 1, WorkersStopped{});
  job.Say(who, 1, AgentLeft{SIGTERM, false});
}

TEST(JobSignalTest, NodeOfAnAllocationThatIsShutDownLeavesAlone) {
  Job job = OfAllocation(3);
  EXPECT_THAT(job.Say(3, 1, AgentLeft{SIGTERM, true}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30",
                          "stop 3 g1 signal 15 grace 30"));
  EXPECT_EQ(job.machine_.doubtful_signals(), 1u);
  Leave(job, 3);
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 2 g2 rank 1 of 2 restart 0 world 1"));
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
  // Long after that another one: it is not the same signal.
  job.Start(2, {1, 2});
  job.Wait(std::chrono::seconds(20), {1, 2});
  job.Say(2, 2, AgentLeft{SIGTERM, true});
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
}

TEST(JobSignalTest, SignalToAllNodesOfAnAllocationIsForAll) {
  Job job = OfAllocation(3);
  job.Say(3, 1, AgentLeft{SIGTERM, true});
  EXPECT_THAT(job.Say(1, 1, AgentLeft{SIGTERM, true}), IsEmpty());  // They are being stopped.
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
  EXPECT_THAT(job.Say(2, 1, AgentLeft{SIGTERM, true}), IsEmpty());
  EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
  for (const uint64_t who : {1, 2, 3}) {
    Leave(job, who);
  }
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
}

TEST(JobSignalTest, NodesOfAnAllocationThatAreShutDownTogetherLeaveAlone) {
  Job job = OfAllocation(5);
  for (const uint64_t who : {4, 5}) {
    job.Say(who, 1, AgentLeft{SIGTERM, true});
  }
  for (const uint64_t who : {4, 5}) {
    Leave(job, who);
  }
  for (const uint64_t who : {1, 2}) {
    job.Say(who, 1, WorkersStopped{});
  }
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 3 restart 0 world 1",
                          "prepare 2 g2 rank 1 of 3 restart 0 world 1",
                          "prepare 3 g2 rank 2 of 3 restart 0 world 1"));
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
}

TEST(JobSignalTest, SignalOfLongAgoDoesNotCountForANodeThatIsBack) {
  Job job = OfAllocation(3);
  job.Say(3, 1, AgentLeft{SIGTERM, true});
  Leave(job, 3);
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  job.Start(2, {1, 2});
  job.Join(13, {}, 0, "node-3");
  job.Say(1, 2, WorkersStopped{});
  job.Say(2, 2, WorkersStopped{});
  job.Start(3, {1, 2, 13});
  job.Wait(std::chrono::seconds(20), {1, 2, 13});
  job.Say(1, 3, AgentLeft{SIGTERM, true});
  job.Say(2, 3, AgentLeft{SIGTERM, true});
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
  job.Say(13, 3, AgentLeft{SIGTERM, true});
  EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
}

TEST(JobSignalTest, SecondNodesSignalEndsAJobThatWaitsForNodesAlready) {
  Job job = OfAllocation(2);
  job.Say(1, 1, AgentLeft{SIGTERM, true});
  Leave(job, 1);
  job.Say(2, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
  job.Say(2, 1, AgentLeft{SIGTERM, false});
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
  EXPECT_EQ(job.machine_.outcome()->signal, SIGTERM);
}

TEST(JobSignalTest, CoordinatorsOwnSignalAfterOneOfAnAgentIsNoImpatience) {
  Job job = OfAllocation(3);
  job.Say(3, 1, AgentLeft{SIGTERM, true});
  EXPECT_THAT(job.Step(job::OperatorStop{SIGTERM}), IsEmpty());
  EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
}

TEST(JobSignalTest, SignalToTheLastNodeOfAnAllocationIsForAll) {
  Job job = OfAllocation(2);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(300), {1});
  job.Say(1, 1, AgentLeft{SIGTERM, true});
  EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
}

TEST(JobSignalTest, NodeThatHasNoConnectionIsNotWaitedForByASignalToAll) {
  Job job = OfAllocation(4);
  job.Step(job::AgentStreamLost{Incarnation(4)});
  job.Say(1, 1, AgentLeft{SIGTERM, true});
  job.Say(2, 1, AgentLeft{SIGTERM, true});
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
  job.Say(3, 1, AgentLeft{SIGTERM, true});
  EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
}

TEST(JobSignalTest, SignalToTheFirstNodesOfAnAllocationWaitsForThoseThatHaveNotComeYet) {
  JobSpec spec = Spec(2, 3, 3);
  spec.signalled_together = {"node-1", "node-2", "node-3"};
  Job job(spec);
  job.Join(1);
  job.Join(2);
  job.Say(1, 0, AgentLeft{SIGTERM, false});
  job.Say(2, 0, AgentLeft{SIGTERM, false});
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
  job.Join(3);
  job.Say(3, 0, AgentLeft{SIGTERM, false});
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
}

TEST(JobSignalTest, NodeThatIsLostWhileAllOthersAreSignalledIsTakenToBeSignalledToo) {
  for (const bool keeps_stream : {true, false}) {
    Job job = OfAllocation(3);
    job.Say(1, 1, AgentLeft{SIGTERM, true});
    job.Say(2, 1, AgentLeft{SIGTERM, true});
    if (!keeps_stream) {
      job.Step(job::AgentStreamLost{Incarnation(3)});
    }
    EXPECT_FALSE(job.machine_.operator_signal().has_value());
    job.Wait(keeps_stream ? std::chrono::milliseconds(7000) : std::chrono::milliseconds(300),
             {1, 2});
    EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
    EXPECT_EQ(job.machine_.stop()->grace, std::chrono::seconds(30));
    Leave(job, 1);
    Leave(job, 2);
    EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
    EXPECT_EQ(job.machine_.outcome()->signal, SIGTERM);
  }
}

TEST(JobSignalTest, NodeThatIsLostAfterAllOthersHaveLeftEndsTheJob) {
  Job job = OfAllocation(3);
  for (const uint64_t who : {1, 2}) {
    job.Say(who, 1, AgentLeft{SIGTERM, true});
    Leave(job, who);
  }
  job.Step(job::AgentStreamLost{Incarnation(3)});
  job.Wait(std::chrono::milliseconds(300));
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
}

TEST(JobSignalTest, SpareThatIsLostWhileTheJobWaitsForNodesEndsItIfAllOthersWereSignalled) {
  Job job = OfAllocation(3);
  for (const uint64_t who : {1, 2}) {
    job.Say(who, 1, AgentLeft{SIGTERM, true});
    Leave(job, who);
  }
  job.Say(3, 1, WorkersStopped{});
  ASSERT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
  job.Step(job::AgentStreamLost{Incarnation(3)});
  job.Wait(std::chrono::milliseconds(300));
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("stopped by signal 15 while waiting"));
}

TEST(JobSignalTest, OnlyNodeOfAWorldIsLostAfterTheSparesOfItsAllocationWereSignalled) {
  JobSpec spec = Spec(1, 1, 3);
  spec.signalled_together = {"node-1", "node-2"};
  Job job(spec);
  job.Join(1);
  job.Start(1, {1});
  job.Join(2);
  job.Say(2, 0, AgentLeft{SIGTERM, false});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
  job.Step(job::AgentStreamLost{Incarnation(1)});
  job.Wait(std::chrono::milliseconds(300));
  EXPECT_EQ(job.machine_.outcome()->kind, OutcomeKind::kStoppedBySignal);
}

TEST(JobSignalTest, NodeThatFallsSilentLongAfterTheSignalOfTheOthersIsLostAlone) {
  for (const int seconds : {4, 6}) {
    Job job = OfAllocation(3);
    job.Say(1, 1, AgentLeft{SIGTERM, true});
    job.Say(2, 1, AgentLeft{SIGTERM, true});
    job.Wait(std::chrono::seconds(seconds), {1, 2, 3});
    job.Step(job::AgentStreamLost{Incarnation(3)});
    job.Wait(std::chrono::milliseconds(300), {1, 2});
    EXPECT_EQ(job.machine_.operator_signal().has_value(), seconds == 4);
  }
}

TEST(JobSignalTest, NodeOfAnotherAllocationThatIsLostSaysNothingAboutASignal) {
  JobSpec spec = Spec(1, 3, 3);
  spec.signalled_together = {"node-1", "node-2"};
  Job job(spec);
  for (const uint64_t who : {1, 2, 3}) {
    job.Join(who);
  }
  job.Start(1, {1, 2, 3});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Say(3, 1, AgentLeft{SIGTERM, true});
  job.Wait(std::chrono::milliseconds(300), {1, 3});
  EXPECT_FALSE(job.machine_.operator_signal().has_value()) << "nobody of the allocation has told";
  job.Say(1, 1, WorkersStopped{});
  job.Step(job::AgentStreamLost{Incarnation(1)});
  job.Wait(std::chrono::milliseconds(300), {3});
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
}

TEST(JobSignalTest, NodeThatStillSavesAfterAnEarlierSignalIsNotWaitedFor) {
  Job job = OfAllocation(2);
  job.Say(1, 1, AgentLeft{SIGTERM, true});
  job.Wait(std::chrono::seconds(6), {1, 2});
  job.Say(2, 1, AgentLeft{SIGTERM, true});
  EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
}

TEST(JobSignalTest, SignalsLongBeforeTheFirstWorldDoNotCount) {
  JobSpec spec = Spec(2, 3, 3);
  spec.signalled_together = {"node-1", "node-2", "node-3"};
  Job job(spec);
  job.Join(1);
  job.Say(1, 0, AgentLeft{SIGTERM, false});
  job.Wait(std::chrono::seconds(20));
  for (const uint64_t who : {2, 3}) {
    job.Join(who);
  }
  for (const uint64_t who : {2, 3}) {
    job.Say(who, 0, AgentLeft{SIGTERM, false});
  }
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
}

TEST(JobSignalTest, NodeOfAnotherAllocationIsNeverTheLastThatCouldTell) {
  JobSpec spec = Spec(1, 3, 3);
  spec.signalled_together = {"node-1", "node-2"};
  Job job(spec);
  for (const uint64_t who : {1, 2, 3}) {
    job.Join(who);
  }
  job.Start(1, {1, 2, 3});
  job.Say(1, 1, AgentLeft{SIGTERM, true});
  job.Wait(std::chrono::milliseconds(4900), {1, 2, 3});
  job.Wait(std::chrono::milliseconds(300), {1, 2});  // The third falls silent in time for a signal,
  job.Step(job::AgentStreamLost{Incarnation(2)});    // the second does not.
  job.Wait(std::chrono::milliseconds(300), {1});
  EXPECT_EQ(job.machine_.nodes().size(), 2u);
  job.Wait(std::chrono::seconds(7), {1});
  EXPECT_EQ(job.machine_.nodes().size(), 1u);
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
}

TEST(JobSignalTest, AgentThatComesAfterTheSignalToItsNodeHasNotGotIt) {
  Job job = OfAllocation(3);
  job.Say(3, 1, AgentLeft{SIGTERM, true});
  Leave(job, 3);
  NodeInfo info;
  info.incarnation = Incarnation(13);
  info.name = "node-3";
  info.local_world_size = 2;
  job.Say(13, 0, AgentJoined{info, Generation(), {}});
  job.Say(1, 1, AgentLeft{SIGTERM, true});
  job.Say(2, 1, AgentLeft{SIGTERM, true});
  EXPECT_FALSE(job.machine_.operator_signal().has_value());
  job.Say(13, 0, AgentLeft{SIGTERM, false});
  EXPECT_EQ(job.machine_.operator_signal(), SIGTERM);
}

}  // namespace
}  // namespace fsdprun
