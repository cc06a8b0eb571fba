// How a node handles its link to the coordinator, its keeper and the reports of its workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/agent/node/agent_driver.h"

namespace fsdprun {
namespace {

using node::Phase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;

/// The delays before the next `count` attempts, all of which fail.
std::vector<std::string> FailedAttempts(Agent& agent, int count) {
  std::vector<std::string> words;
  for (int i = 0; i < count; ++i) {
    words.push_back(agent.Step(node::StreamLost{"connection refused"}).at(0));
  }
  return words;
}

TEST(NodeLinkTest, BeforeAdmissionAttemptsBackOffToASecond) {
  Agent agent;
  agent.Step(node::Boot{});
  EXPECT_THAT(FailedAttempts(agent, 12).back(), MatchesRegex("connect in ([5-9]..|1000)ms"));
}

TEST(NodeLinkTest, WhereWorkersRunAttemptsBackOffToATenthOfASecond) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  const std::vector<std::string> attempts = FailedAttempts(agent, 12);
  EXPECT_EQ(attempts.front(), "connect in 0ms");
  EXPECT_THAT(attempts.back(), MatchesRegex("connect in ([5-9].|100)ms"));
}

TEST(NodeLinkTest, CoordinatorThatDoesNotAnswerIsDialledAgain) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.answers_ = false;
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(2400)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("connect in 0ms"));
  EXPECT_EQ(agent.machine_.coordinator_deadline().has_value(), true);
  EXPECT_THAT(agent.Wait(std::chrono::seconds(10)), IsEmpty());  // No beat without a stream.
}

TEST(NodeLinkTest, AgentThatWasLateDoesNotTakeItForTheCoordinatorsSilence) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Wait(std::chrono::milliseconds(1100));
  agent.answers_ = false;  // It answers, but the answers are unread.
  agent.now_ = agent.wake_at_ + std::chrono::milliseconds(450);
  EXPECT_THAT(agent.Step(node::TimerDue{}), ElementsAre("send heartbeat g1"));
  for (int beat = 0; beat < 3; ++beat) {
    agent.now_ = agent.wake_at_ + std::chrono::milliseconds(450);
    EXPECT_THAT(agent.Step(node::TimerDue{}), ElementsAre("send heartbeat g1"));
  }
  agent.Order(0, HeartbeatHeard{});
  agent.answers_ = true;
  EXPECT_THAT(agent.Wait(std::chrono::seconds(10)), IsEmpty());
}

TEST(NodeLinkTest, SpareThatIsLeftOutSaysSoUntilItIsNot) {
  Agent agent;
  agent.Up();
  EXPECT_THAT(agent.Order(0, LeftOut{"it keeps failing"}), IsEmpty());
  EXPECT_EQ(agent.machine_.reason(), "left out: it keeps failing");
  EXPECT_THAT(agent.Order(0, LeftOut{}), IsEmpty());
  EXPECT_EQ(agent.machine_.reason(), "admitted; waiting for a place in the world");
}

TEST(NodeLinkTest, ACoordinatorOfAnotherProtocolIsLeftWithBothNamed) {
  Agent agent;
  agent.Step(node::Boot{});
  agent.Step(node::KeeperReady{});
  agent.Step(node::StreamUp{});
  EXPECT_THAT(agent.Order(0, AdmitAgent{{}, {}, {0, ""}}), ElementsAre("send left g0", "exit 1"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("an older fsdprun that names no protocol"));
  EXPECT_THAT(agent.exit_message_, HasSubstr(std::string("fsdprun ") + kRelease));
}

/// What an attempt comes to when nothing listens at the coordinator's address.
const node::StreamLost kRefused{"connection refused", true};

TEST(NodeLinkTest, SilentCoordinatorIsGivenUpAfterItsGrace) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"keepalive timed out"});
  for (int second = 5; second < 30; second += 5) {
    EXPECT_THAT(agent.Wait(std::chrono::seconds(5)), IsEmpty());
    EXPECT_THAT(agent.Step(node::StreamLost{"no answer within 5 s"}),
                ElementsAre(HasSubstr("connect in")));
  }
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(4900)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("kill g1"));
  agent.Step(node::AllWorkersGone{Generation(1)});
  EXPECT_THAT(agent.exit_message_, HasSubstr("could not reach it again within 30 s"));
}

TEST(NodeLinkTest, DeadlineOfTheCoordinatorIsKnownWhileItIsLost) {
  Agent agent;
  agent.Step(node::Boot{});
  EXPECT_EQ(agent.machine_.coordinator_deadline(), std::nullopt);  // It was never there.
  agent.Step(node::StreamUp{});
  agent.Order(0, AdmitAgent{});
  EXPECT_EQ(agent.machine_.coordinator_deadline(), std::nullopt);
  agent.Step(node::StreamLost{"keepalive timed out"});
  EXPECT_EQ(agent.machine_.coordinator_deadline(), agent.now_ + std::chrono::seconds(30));
}

TEST(NodeLinkTest, ClocksFollowTheCoordinatorsLease) {
  for (const auto& [lease, heartbeats, grace] :
       {std::tuple(std::chrono::seconds(1), 6, std::chrono::seconds(30)),
        std::tuple(std::chrono::seconds(60), 2, std::chrono::seconds(70))}) {
    Agent agent;
    agent.Step(node::Boot{});
    agent.Step(node::StreamUp{});
    agent.Order(0, AdmitAgent{lease});
    agent.Wait(std::chrono::milliseconds(1100));
    EXPECT_EQ(agent.heartbeats_, heartbeats);
    agent.Step(node::StreamLost{"keepalive timed out"});
    EXPECT_EQ(agent.machine_.coordinator_deadline(), agent.now_ + grace);
  }
}

TEST(NodeLinkTest, ClocksStayAsTheyAreIfTheCoordinatorTellsNoOtherLease) {
  NodeSpec spec = Agent::Spec();
  spec.coordinator_grace = std::chrono::seconds(50);
  for (const Duration lease : {Duration{}, spec.node_lease}) {
    Agent agent(spec);
    agent.Step(node::Boot{});
    agent.Step(node::StreamUp{});
    agent.Order(0, AdmitAgent{lease});
    agent.Step(node::StreamLost{"keepalive timed out"});
    EXPECT_EQ(agent.machine_.coordinator_deadline(), agent.now_ + spec.coordinator_grace);
  }
}

TEST(NodeLinkTest, CoordinatorThatComesBackFindsTheWorkersAsTheyWere) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"keepalive timed out"});
  agent.Wait(std::chrono::seconds(29));
  EXPECT_THAT(agent.Step(node::StreamUp{}),
              ElementsAre("send joined g1", "send prepared g1", "send started g1"));
  agent.Order(0, AdmitAgent{});
  EXPECT_THAT(agent.Wait(std::chrono::seconds(60)), IsEmpty());
  EXPECT_EQ(agent.machine_.phase(), Phase::kRunning);
  // The next loss has the whole grace again.
  agent.Step(node::StreamLost{"keepalive timed out"});
  EXPECT_THAT(agent.Wait(std::chrono::seconds(29)), IsEmpty());
}

TEST(NodeLinkTest, CoordinatorThatHasEndedIsGivenUpSoonAfterTheFirstRefusal) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(300)), IsEmpty());
  agent.Step(kRefused);
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(300)), IsEmpty());
  agent.Step(kRefused);
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(190)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(20)), ElementsAre("kill g1"));
}

TEST(NodeLinkTest, RefusalThatWasNotTheLastWordIsForgotten) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.Step(kRefused);
  agent.Step(node::StreamLost{"no answer within 5 s"});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(29'900)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("kill g1"));
}

TEST(NodeLinkTest, LateRefusalDoesNotExtendTheGrace) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"keepalive timed out"});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(29'900)), IsEmpty());
  agent.Step(kRefused);
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("kill g1"));
}

TEST(NodeLinkTest, CoordinatorThatDoesNotAdmitAgainIsGivenUp) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.Step(node::StreamUp{});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(29'900)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("kill g1"));
}

TEST(NodeLinkTest, LateStreamHasTenSecondsForTheAdmission) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.Wait(std::chrono::seconds(25));
  agent.Step(node::StreamUp{});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(9900)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("kill g1"));
}

TEST(NodeLinkTest, AgentThatWasItselfStoppedGivesTheCoordinatorTheRestOfTheGrace) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.now_ += std::chrono::seconds(40);
  EXPECT_THAT(agent.Step(node::TimerDue{}), IsEmpty());
  EXPECT_THAT(agent.Step(node::StreamLost{"no answer within 5 s"}),
              ElementsAre(HasSubstr("connect in")));
  EXPECT_EQ(agent.machine_.phase(), Phase::kRunning);
}

TEST(NodeLinkTest, AStallIsForgivenOnceHoweverManyEventsItHasQueued) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Order(1, StopWorkers{SIGTERM, Duration{}, "a failure elsewhere"});
  ASSERT_EQ(agent.machine_.phase(), Phase::kKilling);
  agent.now_ += std::chrono::seconds(10);
  for (int record = 0; record < 40; ++record) {
    agent.Step(node::WorkerProgress{Generation(1), 0, {}});
  }
  // 5 s after SIGKILL, and what the agent did not run of them.
  EXPECT_THAT(agent.Wait(std::chrono::seconds(6)), ElementsAre("send fault g1"));
  EXPECT_EQ(agent.machine_.phase(), Phase::kWedged);
}

TEST(NodeLinkTest, FirstAdmissionMayTakeTheWholeConnectTimeout) {
  NodeSpec spec = Agent::Spec();
  spec.connect_timeout = std::chrono::seconds(60);
  Agent agent(spec);
  agent.Step(node::Boot{});
  agent.Step(node::StreamUp{});
  EXPECT_THAT(agent.Wait(std::chrono::seconds(59)), IsEmpty());
  EXPECT_FALSE(agent.machine_.exited());
  agent.Wait(std::chrono::seconds(2));
  EXPECT_TRUE(agent.machine_.exited());
}

TEST(NodeLinkTest, CoordinatorThatCanBeStartedAgainIsWaitedForAsLongAsASilentOne) {
  for (const bool may_be_taken_over : {false, true}) {
    Agent agent;
    agent.Step(node::Boot{});
    agent.Step(node::KeeperReady{});
    agent.Step(node::StreamUp{});
    agent.Order(0, AdmitAgent{.may_be_taken_over = may_be_taken_over});
    agent.Run(1);
    agent.Step(node::StreamLost{"connection reset"});
    agent.Step(node::StreamLost{"connection refused", /*nothing_listens=*/true});
    agent.Wait(std::chrono::seconds(29));
    EXPECT_EQ(agent.machine_.phase() == node::Phase::kRunning, may_be_taken_over);
    agent.Wait(std::chrono::seconds(2));
    EXPECT_NE(agent.machine_.phase(), node::Phase::kRunning);
  }
}

TEST(NodeLinkTest, OnlyAnIdleNodeWaitsForAPlaceInTheWorld) {
  Agent agent;
  agent.Up();
  EXPECT_THAT(std::string(agent.machine_.reason()), HasSubstr("waiting for a place"));
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.Step(node::StreamUp{});
  agent.Order(0, AdmitAgent{});
  EXPECT_THAT(std::string(agent.machine_.reason()), Not(HasSubstr("waiting for a place")));
}

TEST(NodeLinkTest, ReasonForgetsALossThatAnAdmissionHasRepaired) {
  Agent agent;
  agent.Step(node::Boot{});
  agent.Step(node::KeeperReady{});
  agent.Step(node::StreamUp{});
  agent.Step(node::StreamLost{"connection reset"});
  EXPECT_THAT(std::string(agent.machine_.reason()), HasSubstr("lost the stream"));
  const auto reconnect = [&agent] {
    agent.Step(node::StreamLost{"connection reset"});
    agent.Step(node::StreamUp{});
    agent.Step(node::StreamLost{"connection reset"});  // once more, before it is admitted
    EXPECT_THAT(std::string(agent.machine_.reason()), HasSubstr("lost the stream"));
    agent.Step(node::StreamUp{});
    agent.Order(0, AdmitAgent{});
    return std::string(agent.machine_.reason());
  };
  EXPECT_THAT(reconnect(), HasSubstr("waiting for a place"));
  agent.Prepare(1);
  EXPECT_EQ(reconnect(), "preparing generation 1");
  agent.Step(node::LogsAndStoreReady{Generation(1), StoreEndpoint{"10.0.0.1", 3}});
  EXPECT_EQ(reconnect(), "preparing generation 1");
  agent.Order(1, CommitGeneration{StoreEndpoint{"10.0.0.1", 3}});
  agent.Step(node::WorkersSpawned{Generation(1), {100, 101}});
  EXPECT_THAT(reconnect(), HasSubstr("running generation 1"));
  agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "a worker failed"});
  EXPECT_EQ(reconnect(), "stopping: a worker failed");
  agent.Step(node::StreamLost{"connection reset"});
  agent.Step(node::KeeperLost{"killed by signal 9"});
  agent.Step(node::StreamUp{});
  agent.Order(0, AdmitAgent{});
  EXPECT_THAT(std::string(agent.machine_.reason()), HasSubstr("keeper died"))
      << "newer than the loss";
}

TEST(NodeKeeperTest, PreparingWaitsForTheKeeperAndHappensOnce) {
  Agent agent;
  agent.Step(node::Boot{});
  agent.Step(node::StreamUp{});
  agent.Order(0, AdmitAgent{});
  EXPECT_THAT(agent.Prepare(1), IsEmpty());
  EXPECT_THAT(agent.Step(node::KeeperReady{}), ElementsAre("prepare g1 store"));
  EXPECT_THAT(agent.Step(node::KeeperReady{}), IsEmpty());
}

TEST(NodeKeeperTest, IdleNodeHasNothingToPrepareWhenTheKeeperIsReady) {
  Agent agent;
  agent.Step(node::Boot{});
  EXPECT_THAT(agent.Step(node::KeeperReady{}), IsEmpty());
}

TEST(NodeKeeperTest, NewKeeperPreparesAgain) {
  Agent agent;
  agent.Up();
  agent.Prepare(1);
  EXPECT_THAT(agent.Step(node::KeeperLost{"killed by signal 9"}), ElementsAre("keeper in 0ms"));
  EXPECT_THAT(agent.Step(node::KeeperReady{}), ElementsAre("prepare g1 store"));
}

TEST(NodeKeeperTest, KeeperThatLivedLongStartsANewCount) {
  Agent agent;
  agent.Up();
  for (int i = 0; i < 8; ++i) {
    agent.Wait(std::chrono::seconds(11));
    EXPECT_THAT(agent.Step(node::KeeperLost{"killed by signal 9"}), ElementsAre("keeper in 0ms"));
    agent.Step(node::KeeperReady{});
  }
}

TEST(NodeKeeperTest, KeepersThatDieSoonEndTheAgent) {
  Agent agent;
  agent.Up();
  for (int i = 0; i < 5; ++i) {
    agent.Step(node::KeeperLost{"killed by signal 9"});
    agent.Step(node::KeeperReady{});
    agent.Wait(std::chrono::seconds(1));
  }
  EXPECT_THAT(agent.Step(node::KeeperLost{"killed by signal 9"}),
              ElementsAre("send left g0", "exit 1"));
}

TEST(NodeReportTest, FailedPreparationIsReportedAndNothingIsLeft) {
  Agent agent;
  agent.Up();
  agent.Prepare(2);
  EXPECT_THAT(agent.Step(node::PrepareFailed{Generation(1), "late"}), IsEmpty());
  EXPECT_THAT(agent.Step(node::PrepareFailed{Generation(2), "the disk is full"}),
              ElementsAre("send fault g2", "send stopped g2"));
  EXPECT_EQ(agent.machine_.reason(), "the disk is full");
  EXPECT_THAT(agent.Step(node::PrepareFailed{Generation(2), "again"}), IsEmpty());
}

TEST(NodeReportTest, OnlyGroupRankZeroNamesTheStore) {
  for (const int group_rank : {0, 1}) {
    Agent agent;
    agent.Up();
    agent.Prepare(1, group_rank);
    agent.Step(node::LogsAndStoreReady{Generation(1), StoreEndpoint{"10.0.0.1", 3}});
    EXPECT_EQ(agent.last_store_.has_value(), group_rank == 0);
  }
}

TEST(NodeReportTest, HeartbeatTellsNewProgressOfTheFirstWorkerOnce) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  const auto step_of_next_heartbeat = [&agent] {
    agent.Wait(std::chrono::milliseconds(500));
    return agent.last_progress_.step;
  };
  agent.Step(node::WorkerProgress{Generation(1), 0, Progress{5, 100, ""}});
  EXPECT_EQ(step_of_next_heartbeat(), 5);
  EXPECT_EQ(step_of_next_heartbeat(), -1);
  agent.Step(node::WorkerProgress{Generation(1), 1, Progress{6, 100, ""}});  // not the first
  EXPECT_EQ(step_of_next_heartbeat(), -1);
  agent.Step(node::WorkerProgress{Generation(2), 0, Progress{7, 100, ""}});  // not of this world
  EXPECT_EQ(step_of_next_heartbeat(), -1);
}

TEST(NodeReportTest, LastProgressIsToldBeforeAnExitAndNotAgain) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::WorkerProgress{Generation(1), 0, Progress{9, 100, ""}});
  const std::vector<std::string> sent = agent.Reap(1, 0, 0);
  ASSERT_EQ(sent.size(), 2);
  EXPECT_EQ(sent[0], "send heartbeat g1");
  EXPECT_EQ(agent.last_progress_.step, 9);
  EXPECT_EQ(agent.Reap(1, 1, 0).size(), 1);
}

TEST(NodeReportTest, ExitTellsTheLastStepOfThatWorker) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::WorkerProgress{Generation(1), 1, Progress{7, 100, ""}});
  agent.Step(node::WorkerProgress{Generation(1), 2, Progress{8, 100, ""}});   // no such worker
  agent.Step(node::WorkerProgress{Generation(1), -1, Progress{9, 100, ""}});  // no such worker
  agent.Reap(1, 0, 3);
  EXPECT_EQ(agent.last_exit_.last_step, -1);
  agent.Reap(1, 1, 3);
  EXPECT_EQ(agent.last_exit_.last_step, 7);
}

TEST(NodeStopTest, WorkersThatAreBeingStartedHaveTheirGrace) {
  Agent agent;
  agent.Up();
  agent.Prepare(1);
  agent.Step(node::LogsAndStoreReady{Generation(1), {}});
  agent.Order(1, CommitGeneration{});
  EXPECT_THAT(agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(2), "test"}),
              ElementsAre("signal 15 g1"));
}

TEST(NodeStopTest, DescendantsOfEndedWorkersHaveNone) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Reap(1, 0, 0);
  agent.Reap(1, 1, 0);
  EXPECT_THAT(agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(2), "test"}),
              ElementsAre("kill g1"));
}

}  // namespace
}  // namespace fsdprun
