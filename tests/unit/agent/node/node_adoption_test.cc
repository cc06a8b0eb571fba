// An agent is killed, and another one goes on with what it has left: see Note [Adopting workers].
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/agent/node/agent_driver.h"

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Words = std::vector<std::string>;

NodeSpec DaemonSpec() {
  NodeSpec spec = Agent::Spec();
  spec.node.has_successor = true;
  return spec;
}

class NodeAdoptionTest : public testing::Test {
 protected:
  /// The agent is killed; the next one begins a while later.
  Words Replace(Duration pause = milliseconds(200)) {
    EXPECT_TRUE(agent_->record_.has_value());
    const NodeRecord record = *agent_->record_;
    EXPECT_EQ(record.incarnation, Incarnation(7));
    const MonoTime now = agent_->now_ + pause;
    agent_ = std::make_unique<Agent>(DaemonSpec());
    agent_->now_ = now;
    return agent_->Step(node::Resume{record});
  }
  Words Connect() { return agent_->Step(node::StreamUp{}); }
  Words Spawned(uint64_t g) {
    return agent_->Step(node::WorkersSpawned{Generation(g), {100, 101}});
  }

  std::unique_ptr<Agent> agent_ = std::make_unique<Agent>(DaemonSpec());
};

TEST_F(NodeAdoptionTest, WithoutASuccessorNothingIsKept) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_FALSE(agent.record_.has_value());
}

TEST_F(NodeAdoptionTest, RunningWorkersAreAdoptedAndNothingIsStartedAnew) {
  agent_->Up();
  agent_->Run(3);
  EXPECT_THAT(Replace(), ElementsAre("spawn g3", "connect in 0ms"));
  EXPECT_EQ(agent_->spawned_.master_port, 30000);
  EXPECT_EQ(agent_->machine_.phase(), node::Phase::kSpawning);
  EXPECT_THAT(Spawned(3), IsEmpty());  // There is no stream yet.
  EXPECT_EQ(agent_->machine_.phase(), node::Phase::kRunning);
  EXPECT_THAT(Connect(), ElementsAre("send joined g3", "send prepared g3", "send started g3"));
  EXPECT_EQ(agent_->last_store_->port, 30000);
  agent_->Order(0, AdmitAgent{});
  EXPECT_THAT(agent_->Wait(seconds(60)), IsEmpty());
  EXPECT_EQ(agent_->machine_.live_workers(), 2);
}

TEST_F(NodeAdoptionTest, WhatAKeeperKnewThatDiedIsToldAgainAllTheSame) {
  agent_->Up();
  agent_->Run(3);
  agent_->Reap(3, 0, 0);
  agent_->Reap(3, 1, 0);
  agent_->Step(node::AllWorkersGone{Generation(3)});
  agent_->Step(node::KeeperLost{"killed by signal 9"});
  agent_->Step(node::KeeperReady{});
  for (int i = 0; i < 2; ++i) {  // The next one, and the one after that.
    Replace();
    agent_->Step(node::AllWorkersGone{Generation(3)});
    EXPECT_THAT(Connect(), ElementsAre("send joined g3", "send prepared g3", "send started g3",
                                       "send exited g3", "send exited g3", "send stopped g3"));
  }
}

TEST_F(NodeAdoptionTest, WhoWasLeavingLeaves) {
  agent_->Up();
  agent_->Run(3);
  agent_->Step(node::OperatorSignal{2});
  Replace();
  Spawned(3);
  EXPECT_THAT(Connect(), ElementsAre("send joined g3", "send left g3", "send prepared g3"));
  agent_->Reap(3, 0, 0);
  agent_->Reap(3, 1, 0);
  EXPECT_THAT(agent_->Step(node::AllWorkersGone{Generation(3)}),
              ElementsAre("send stopped g3", "send left g3", "exit 1"));
}

TEST_F(NodeAdoptionTest, WhoWasReleasedEndsWithTheCodeThatItWasTold) {
  agent_->Up();
  agent_->Run(3);
  agent_->Order(0, ReleaseAgent{.exit_code = 5, .reason = "the job is over"});
  EXPECT_THAT(Replace(), testing::Not(testing::Contains(testing::StartsWith("exit"))));
  EXPECT_TRUE(agent_->machine_.was_released());
  EXPECT_THAT(agent_->Step(node::AllWorkersGone{Generation(3)}), testing::Contains("exit 5"));
}

TEST_F(NodeAdoptionTest, WhoHadOnlyToExitExits) {
  agent_->Up();
  agent_->Order(0, ReleaseAgent{.exit_code = 5, .reason = "the job is over"});
  EXPECT_THAT(Replace(), ElementsAre("exit 5"));
}

TEST_F(NodeAdoptionTest, TwiceInARow) {
  agent_->Up();
  agent_->Run(3);
  Replace();
  EXPECT_THAT(Replace(), ElementsAre("spawn g3", "connect in 0ms"));
  Connect();
  EXPECT_THAT(Spawned(3), ElementsAre("send started g3"));
}

TEST_F(NodeAdoptionTest, AnOrderThatComesBeforeTheKeeperHasToldOfTheWorkersStopsThem) {
  agent_->Up();
  agent_->Run(3);
  Replace();
  Connect();
  EXPECT_THAT(agent_->Order(3, StopWorkers{15, seconds(30), "why"}), ElementsAre("signal 15 g3"));
  Spawned(3);
  EXPECT_EQ(agent_->machine_.phase(), node::Phase::kStopping);
  EXPECT_EQ(agent_->machine_.live_workers(), 2);
}

TEST_F(NodeAdoptionTest, AnExitIsToldAgainWithTheAgeThatItHas) {
  agent_->Up();
  agent_->Run(3);
  EXPECT_THAT(agent_->Reap(3, 1, 5), ElementsAre("send exited g3"));
  Replace();
  Connect();
  Spawned(3);
  EXPECT_THAT(agent_->Reap(3, 1, 5, 0, milliseconds(200)), ElementsAre("send exited g3"));
  EXPECT_EQ(agent_->last_exit_.exit_code, 5);
  EXPECT_FALSE(agent_->last_exit_.after_stop);
  EXPECT_EQ(agent_->last_age_, milliseconds(200));
  EXPECT_THAT(agent_->Reap(3, 1, 5), IsEmpty());
}

TEST_F(NodeAdoptionTest, WhatTheWorkersWereToldCountsAsBefore) {
  agent_->Up();
  agent_->Run(3);
  agent_->Order(3, StopWorkers{15, seconds(30), "why"});
  const auto kill_at = agent_->machine_.kill_at();
  EXPECT_THAT(Replace(), ElementsAre("adopt g3", "connect in 0ms"));
  EXPECT_EQ(agent_->machine_.phase(), node::Phase::kStopping);
  EXPECT_EQ(agent_->machine_.kill_at(), kill_at);
  Connect();
  Spawned(3);
  agent_->Reap(3, 0, 0, 15);
  EXPECT_TRUE(agent_->last_exit_.after_stop);
  EXPECT_TRUE(agent_->last_exit_.killed_by_us);
  agent_->Order(0, AdmitAgent{});
  EXPECT_THAT(agent_->Wait(seconds(30)), testing::Contains("kill g3"));
}

TEST_F(NodeAdoptionTest, AGraceThatWasOverMeanwhileIsOver) {
  agent_->Up();
  agent_->Run(3);
  agent_->Order(3, StopWorkers{15, seconds(1), "why"});
  Replace(seconds(2));
  EXPECT_THAT(agent_->Step(node::TimerDue{}), ElementsAre("kill g3"));
}

TEST_F(NodeAdoptionTest, WhatWasBeingKilledIsKilled) {
  agent_->Up();
  agent_->Run(3);
  agent_->Order(3, StopWorkers{15, {}, "why"});
  EXPECT_THAT(Replace(), ElementsAre("adopt g3", "kill g3", "connect in 0ms"));
  Connect();
  Spawned(3);
  agent_->Reap(3, 0, 0, 9);
  EXPECT_TRUE(agent_->last_exit_.killed_by_us);
  agent_->Reap(3, 1, 0, 9);
  EXPECT_THAT(agent_->Step(node::AllWorkersGone{Generation(3)}), ElementsAre("send stopped g3"));
}

TEST_F(NodeAdoptionTest, TheEndOfAllIsToldAgainFromTheBeginning) {
  agent_->Up();
  agent_->Run(3);
  agent_->Reap(3, 0, 0);
  agent_->Reap(3, 1, 0);
  EXPECT_THAT(agent_->Step(node::AllWorkersGone{Generation(3)}), ElementsAre("send stopped g3"));
  EXPECT_THAT(Replace(), ElementsAre("adopt g3", "kill g3", "connect in 0ms"));
  Connect();
  Spawned(3);
  EXPECT_THAT(agent_->Reap(3, 0, 0), ElementsAre("send exited g3"));
  EXPECT_FALSE(agent_->last_exit_.after_stop);
  EXPECT_THAT(agent_->Reap(3, 1, 0), ElementsAre("send exited g3"));
  EXPECT_THAT(agent_->Step(node::AllWorkersGone{Generation(3)}), ElementsAre("send stopped g3"));
  EXPECT_THAT(agent_->Prepare(4), ElementsAre("prepare g4 store"));
}

TEST_F(NodeAdoptionTest, BeforeAnyWorkerIsStarted) {
  agent_->Step(node::Boot{});
  EXPECT_THAT(Replace(), ElementsAre("connect in 0ms"));
  EXPECT_THAT(Connect(), ElementsAre("send joined g0"));
  agent_->Order(0, AdmitAgent{});
  agent_->Prepare(1);
  EXPECT_THAT(Replace(), ElementsAre("prepare g1 store", "connect in 0ms"));
  Connect();
  EXPECT_THAT(agent_->Step(node::LogsAndStoreReady{Generation(1), StoreEndpoint{"a", 1}}),
              ElementsAre("send prepared g1"));
  EXPECT_THAT(Replace(), ElementsAre("connect in 0ms"));
  EXPECT_THAT(Connect(), ElementsAre("send joined g1", "send prepared g1"));
  EXPECT_EQ(agent_->last_store_->port, 1);
  EXPECT_THAT(agent_->Order(1, CommitGeneration{StoreEndpoint{"a", 1}}), ElementsAre("spawn g1"));
  EXPECT_THAT(Replace(), ElementsAre("spawn g1", "connect in 0ms"));
}

TEST_F(NodeAdoptionTest, AFailedPreparationIsToldAgain) {
  agent_->Up();
  agent_->Prepare(1);
  agent_->Step(node::PrepareFailed{Generation(1), "no disk"});
  Replace();
  EXPECT_THAT(Connect(), ElementsAre("send joined g1", "send fault g1", "send stopped g1"));
  agent_->Order(0, AdmitAgent{});
  EXPECT_THAT(agent_->Prepare(1), IsEmpty());
  EXPECT_THAT(agent_->Prepare(2), ElementsAre("prepare g2 store"));
}

TEST_F(NodeAdoptionTest, AnOrderThatWaitedIsTakenWhenItIsRepeated) {
  agent_->Up();
  agent_->Run(1);
  EXPECT_THAT(agent_->Prepare(2), ElementsAre("kill g1"));
  Replace();
  Connect();
  EXPECT_THAT(agent_->Prepare(2), IsEmpty());
  EXPECT_THAT(agent_->Step(node::AllWorkersGone{Generation(1)}),
              ElementsAre("send stopped g1", "prepare g2 store"));
}

TEST_F(NodeAdoptionTest, ItsCoordinatorHasAsLongAsAfterABrokenStream) {
  agent_->Up();
  agent_->Run(3);
  const MonoTime began = agent_->now_;
  Replace();
  EXPECT_EQ(agent_->machine_.coordinator_deadline(), began + milliseconds(200) + seconds(30));
  Spawned(3);
  agent_->Step(node::StreamLost{"refused", true});
  EXPECT_THAT(agent_->Wait(milliseconds(600)), testing::Contains("kill g3"));
}

TEST_F(NodeAdoptionTest, ALongerLeaseOfTheJobIsKnownAtOnce) {
  agent_->Step(node::Boot{});
  agent_->Step(node::KeeperReady{});
  Connect();
  agent_->Order(0, AdmitAgent{.node_lease = seconds(60)});
  agent_->Run(3);
  Replace();
  EXPECT_EQ(agent_->machine_.coordinator_deadline(), agent_->now_ + seconds(70));
}

TEST_F(NodeAdoptionTest, AKeeperThatDiesLaterTakesTheWorkersWithIt) {
  agent_->Up();
  agent_->Run(3);
  Replace();
  Connect();
  Spawned(3);
  EXPECT_THAT(agent_->Step(node::KeeperLost{"killed"}),
              ElementsAre("send fault g3", "kill orphans g3", "keeper in 0ms"));
}

TEST_F(NodeAdoptionTest, BeatsAndExitsChangeNothingThatIsKept) {
  agent_->Up();
  agent_->Run(3);
  agent_->record_.reset();
  agent_->Wait(seconds(10));
  agent_->Step(node::WorkerProgress{Generation(3), 0, {5, 10, ""}});
  agent_->Reap(3, 1, 0);
  EXPECT_FALSE(agent_->record_.has_value());
}

}  // namespace
}  // namespace fsdprun
