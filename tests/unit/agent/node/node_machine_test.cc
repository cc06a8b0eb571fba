#include "agent/node/node_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "proto/worker_contract.h"
#include "tests/unit/agent/node/agent_driver.h"

namespace fsdprun {
namespace {

using node::Phase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NodeMachineTest, RunsAGenerationFromPrepareToRelease) {
  Agent agent;
  EXPECT_THAT(agent.Step(node::Boot{}), ElementsAre("keeper in 0ms", "connect in 0ms"));
  agent.Step(node::KeeperReady{});
  EXPECT_THAT(agent.Step(node::StreamUp{}), ElementsAre("send joined g0"));
  agent.Order(0, AdmitAgent{});
  EXPECT_THAT(agent.Prepare(1), ElementsAre("prepare g1 store"));
  EXPECT_THAT(agent.Step(node::LogsAndStoreReady{Generation(1), StoreEndpoint{"10.0.0.1", 3}}),
              ElementsAre("send prepared g1"));
  EXPECT_THAT(agent.Order(1, CommitGeneration{StoreEndpoint{"10.0.0.1", 3}}),
              ElementsAre("spawn g1"));
  EXPECT_EQ(agent.spawned_.master_port, 3);
  EXPECT_THAT(agent.Step(node::WorkersSpawned{Generation(1), {100, 101}}),
              ElementsAre("send started g1"));
  agent.Wait(std::chrono::seconds(5));
  EXPECT_EQ(agent.heartbeats_, 10);
  EXPECT_THAT(agent.Reap(1, 0, 0), ElementsAre("send exited g1"));
  agent.Reap(1, 1, 0);
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}), ElementsAre("send stopped g1"));
  EXPECT_THAT(agent.Order(0, ReleaseAgent{0, ""}), ElementsAre("send left g1", "exit 0"));
  EXPECT_FALSE(agent.machine_.was_cut_off());
}

TEST(NodeMachineTest, StopIsTermThenKillThenWedged) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_THAT(agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(2), "test"}),
              ElementsAre("signal 15 g1"));
  agent.Reap(1, 0, 0, SIGTERM);
  EXPECT_TRUE(agent.last_exit_.killed_by_us);
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(1900)), ElementsAre("send ended g1"));
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("kill g1"));
  EXPECT_THAT(agent.Wait(std::chrono::seconds(6)), ElementsAre("send fault g1"));
  EXPECT_EQ(agent.machine_.phase(), Phase::kWedged);
  EXPECT_THAT(std::string(agent.machine_.reason()), HasSubstr("pid 101"));
}

TEST(NodeMachineTest, RepeatedStopMayShortenTheGraceButNotLengthenIt) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(2), "test"});
  EXPECT_THAT(agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(60), "test"}), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(2100)), ElementsAre("kill g1"));

  Agent other;
  other.Up();
  other.Run(1);
  other.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(60), "test"});
  EXPECT_THAT(other.Order(1, StopWorkers{SIGTERM, Duration{}, "test"}), ElementsAre("kill g1"));
}

TEST(NodeMachineTest, ForeignSignalAfterStopIsNotOurs) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "test"});
  agent.Reap(1, 0, 0, SIGKILL);
  EXPECT_TRUE(agent.last_exit_.after_stop);
  EXPECT_FALSE(agent.last_exit_.killed_by_us);
}

TEST(NodeMachineTest, DeathBeforeTheStopIsNotOursHoweverLateItIsReaped) {
  constexpr Duration kMs = std::chrono::milliseconds(1);
  for (const auto& [age, after_stop] : {std::pair(60 * kMs, false), std::pair(40 * kMs, true)}) {
    for (const int signal : {0, SIGTERM}) {
      Agent agent;
      agent.Up();
      agent.Run(1);
      agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "test"});
      agent.Wait(50 * kMs);
      agent.Reap(1, 0, signal == 0 ? 1 : 0, signal, age);
      EXPECT_EQ(agent.last_exit_.after_stop, after_stop) << signal;
      EXPECT_EQ(agent.last_exit_.killed_by_us, after_stop && signal != 0) << signal;
      EXPECT_EQ(agent.last_age_, after_stop ? Duration{} : age);
    }
  }
}

TEST(NodeMachineTest, ForeignKillBeforeOursIsNotOurs) {
  for (const auto& [age, is_ours] : {std::pair(2, false), std::pair(0, true)}) {
    Agent agent;
    agent.Up();
    agent.Run(1);
    agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(2), "test"});
    EXPECT_THAT(agent.Wait(std::chrono::milliseconds(2001)), ElementsAre("kill g1"));
    agent.Reap(1, 0, 0, SIGKILL, std::chrono::milliseconds(age));
    EXPECT_TRUE(agent.last_exit_.after_stop);
    EXPECT_EQ(agent.last_exit_.killed_by_us, is_ours);
  }
}

/// What a worker that ended 10 ms ago and wrote its error file `error_age` ago is taken for, 50 ms
/// after the stop.
struct ErrorBeforeStop {
  int signal;
  Duration error_age;
  Duration age;
  bool failed_before_stop;
};

TEST(NodeMachineTest, WorkerFailsWhenItReportsItsErrorNotWhenItEnds) {
  constexpr Duration kMs = std::chrono::milliseconds(1);
  const ErrorBeforeStop cases[] = {
      {0, 70 * kMs, 70 * kMs, true},
      {0, 30 * kMs, 30 * kMs, false},
      {SIGTERM, 70 * kMs, 70 * kMs, true},
      {SIGABRT, 70 * kMs, 70 * kMs, true},
      {SIGKILL, 70 * kMs, 10 * kMs, false},  // foreign: the file is about something else
      {SIGSEGV, 70 * kMs, 10 * kMs, false},
      {0, 5 * kMs, 10 * kMs, false},       // a file is not written by the dead
      {0, 20'000 * kMs, 10 * kMs, false},  // it went on for too long
  };
  for (const ErrorBeforeStop& c : cases) {
    Agent agent;
    agent.Up();
    agent.Run(1);
    agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "test"});
    agent.Wait(50 * kMs);
    agent.Reap(1, 0, c.signal == 0 ? 1 : 0, c.signal, 10 * kMs, c.error_age);
    const bool is_told_alone = c.failed_before_stop || c.signal == SIGKILL;
    EXPECT_EQ(agent.last_age_, is_told_alone ? c.age : Duration{})
        << c.signal << " " << c.error_age / kMs;
    EXPECT_EQ(agent.last_exit_.failed_before_stop, c.failed_before_stop)
        << c.signal << " " << c.error_age / kMs;
    EXPECT_TRUE(agent.last_exit_.after_stop);
  }
}

TEST(NodeMachineTest, ErrorOfAWorkerThatNobodyStopsIsJustOlderThanItsEnd) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Reap(1, 0, 1, 0, Duration(10), Duration(70));
  EXPECT_EQ(agent.last_age_, Duration(70));
  EXPECT_FALSE(agent.last_exit_.failed_before_stop);
}

TEST(NodeMachineTest, RepeatedReportsHaveAged) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Reap(1, 0, 3, 0, std::chrono::milliseconds(5));
  agent.Step(node::StreamLost{"reset"});
  agent.Wait(std::chrono::milliseconds(200));
  agent.Step(node::StreamUp{});
  EXPECT_EQ(agent.last_age_, std::chrono::milliseconds(205));

  Agent other;
  other.Up();
  other.Run(1);
  other.Step(node::KeeperLost{"killed by signal 9"});
  EXPECT_EQ(other.last_age_, Duration{});
  other.Step(node::StreamLost{"reset"});
  other.Wait(std::chrono::milliseconds(200));
  other.Step(node::StreamUp{});
  EXPECT_EQ(other.last_age_, std::chrono::milliseconds(200));
}

TEST(NodeMachineTest, OlderAndForeignOrdersAreDropped) {
  Agent agent;
  agent.Up();
  agent.Run(5);
  const uint64_t before = agent.machine_.stale_dropped();
  EXPECT_THAT(agent.Prepare(4), IsEmpty());
  EXPECT_THAT(agent.Order(4, StopWorkers{}), IsEmpty());
  EXPECT_THAT(agent.Order(4, CommitGeneration{}), IsEmpty());
  EXPECT_THAT(agent.Step(ToAgent{Incarnation(8), Generation(5), StopWorkers{}}), IsEmpty());
  EXPECT_THAT(agent.Reap(4, 0, 1), IsEmpty());
  EXPECT_EQ(agent.machine_.stale_dropped(), before + 5);
  EXPECT_EQ(agent.machine_.phase(), Phase::kRunning);
}

TEST(NodeMachineTest, StopOfAnUnseenGenerationFencesIt) {
  Agent agent;
  agent.Up();
  EXPECT_THAT(agent.Order(3, StopWorkers{}), ElementsAre("send stopped g3"));
  EXPECT_THAT(agent.Prepare(3), IsEmpty());
  EXPECT_THAT(agent.Prepare(4, 1), ElementsAre("prepare g4"));
}

TEST(NodeMachineTest, NewerGenerationWaitsUntilNothingOfTheOldIsLeft) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_THAT(agent.Prepare(2), ElementsAre("kill g1"));
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}),
              ElementsAre("send stopped g1", "prepare g2 store"));
}

TEST(NodeMachineTest, NewStreamRepeatsWhatWasReported) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Reap(1, 0, 3);
  EXPECT_THAT(agent.Step(node::StreamLost{"reset"}), ElementsAre("connect in 0ms"));
  EXPECT_THAT(agent.Reap(1, 1, 3), IsEmpty());
  EXPECT_THAT(agent.Step(node::StreamUp{}),
              ElementsAre("send joined g1", "send prepared g1", "send started g1", "send exited g1",
                          "send exited g1"));
}

TEST(NodeMachineTest, EndedCoordinatorEndsEverythingWithinASecond) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.Step(node::StreamLost{"connection refused", true});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(490)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(20)), ElementsAre("kill g1"));
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(400)), ElementsAre("exit 1"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("10.0.0.1:29400"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("(connection refused) and nothing listens there"));
}

TEST(NodeMachineTest, DeadKeeperFailsTheGenerationAndIsReplaced) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_THAT(agent.Step(node::KeeperLost{"killed by signal 9"}),
              ElementsAre("send fault g1", "kill orphans g1", "keeper in 0ms"));
  agent.Step(node::KeeperReady{});
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}), ElementsAre("send stopped g1"));
  EXPECT_THAT(agent.Prepare(2), ElementsAre("prepare g2 store"));
}

TEST(NodeMachineTest, KeeperThatCannotStartEndsTheAgent) {
  Agent agent;
  agent.Step(node::Boot{});
  std::vector<std::string> words;
  for (int i = 0; i < 6 && !agent.machine_.exited(); ++i) {
    words = agent.Step(node::KeeperLost{"no such file"});
  }
  EXPECT_THAT(words, ElementsAre("exit 1"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("no such file"));
}

TEST(NodeMachineTest, FailedSpawnReportsWhichWorkerAndEndsTheOthers) {
  Agent agent;
  agent.Up();
  agent.Prepare(1);
  agent.Step(node::LogsAndStoreReady{Generation(1), {}});
  agent.Order(1, CommitGeneration{});
  EXPECT_THAT(agent.Step(node::SpawnFailed{Generation(1), 1, "no such file: train.py"}),
              ElementsAre("send fault g1", "kill g1"));
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}), ElementsAre("send stopped g1"));
}

TEST(NodeMachineTest, ReleaseTellsWhetherTheWorkersWereCutOffAndTheJobGoesOn) {
  for (const bool cut_off : {false, true}) {
    Agent agent;
    agent.Up();
    agent.Run(1);
    EXPECT_FALSE(agent.machine_.was_released());
    agent.Order(0, ReleaseAgent{1, "stopped by signal 15", cut_off, !cut_off});
    EXPECT_TRUE(agent.machine_.was_released());
    EXPECT_EQ(agent.machine_.was_cut_off(), cut_off);
    EXPECT_EQ(agent.machine_.leaves_job(), !cut_off);
  }
}

TEST(NodeMachineTest, SignalForWorkersIsForThoseOfItsGenerationWhileTheyRun) {
  Agent agent;
  agent.Up();
  EXPECT_THAT(agent.Order(1, PassSignal{SIGUSR1}), IsEmpty());
  agent.Run(1);
  EXPECT_THAT(agent.Order(1, PassSignal{SIGUSR1}), ElementsAre("notify 10 g1"));
  EXPECT_THAT(agent.Order(2, PassSignal{SIGUSR1}), IsEmpty());
  agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "test"});
  EXPECT_THAT(agent.Order(1, PassSignal{SIGUSR1}), IsEmpty());
}

TEST(NodeMachineTest, FirstOperatorSignalIsPassedOnTheSecondKills) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_EQ(agent.machine_.kill_at(), std::nullopt);
  EXPECT_THAT(agent.Step(node::OperatorSignal{SIGINT}), ElementsAre("send left g1", "signal 2 g1"));
  EXPECT_TRUE(agent.machine_.kill_at().has_value());
  EXPECT_THAT(agent.Step(node::OperatorSignal{SIGINT}), ElementsAre("kill g1"));
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}),
              ElementsAre("send stopped g1", "send left g1", "exit 1"));
  EXPECT_EQ(agent.exit_message_,
            "stopped by signal 2; the workers that were still running were killed at the second "
            "signal");
}

TEST(NodeMachineTest, LeavingAgentSaysSoBeforeItRepeatsWhatItsStopHasEnded) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"reset"});
  EXPECT_THAT(agent.Step(node::OperatorSignal{SIGTERM}), ElementsAre("signal 15 g1"));
  agent.Reap(1, 0, 0, SIGTERM);
  agent.Reap(1, 1, 0, SIGTERM);
  EXPECT_THAT(agent.Step(node::StreamUp{}),
              ElementsAre("send joined g1", "send left g1", "send prepared g1", "send started g1",
                          "send ended g1"));
}

TEST(NodeMachineTest, RejectionEndsTheAgentUnlessItMayRejoin) {
  Agent agent;
  agent.Up();
  EXPECT_THAT(agent.Order(0, RejectAgent{"silent", true}), ElementsAre("send joined g0"));
  EXPECT_THAT(agent.Order(0, RejectAgent{"node rank 0 is taken", false}),
              ElementsAre("send left g0", "exit 1"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("node rank 0 is taken"));
}

TEST(NodeMachineTest, ShorterGraceIsToldToTheWorkersWithoutASecondSignal) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  const auto stop = [&agent](int seconds) {
    return agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(seconds), "why"});
  };
  EXPECT_THAT(stop(30), ElementsAre("signal 15 g1"));
  EXPECT_THAT(stop(30), IsEmpty());
  EXPECT_THAT(stop(2), ElementsAre("signal 0 g1"));
  EXPECT_THAT(stop(20), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(1900)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), ElementsAre("kill g1"));
}

TEST(NodeMachineTest, ReleaseKeepsItsCodeThoughTheCoordinatorIsGoneFirst) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Reap(1, 0, 0);
  agent.Reap(1, 1, 0);
  EXPECT_THAT(agent.Order(0, ReleaseAgent{0, "done"}), ElementsAre("kill g1"));
  agent.Step(node::StreamLost{"the coordinator closed the stream"});
  agent.Step(node::StreamLost{"connection refused", true});
  EXPECT_THAT(agent.Wait(std::chrono::seconds(2)), IsEmpty());
  EXPECT_THAT(agent.Step(node::KeeperLost{"killed by signal 9"}), Contains("kill orphans g1"));
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}), Contains("exit 0"));
}

TEST(NodeMachineTest, ReleaseDoesNotWaitForeverForWhatWillNotDie) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Order(0, ReleaseAgent{0, "done"});
  agent.Step(node::StreamLost{"connection refused", true});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(4900)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(200)), Contains("exit 0"));
}

TEST(NodeMachineTest, UnreachableCoordinatorIsNamedAfterTheConnectTimeout) {
  NodeSpec spec = Agent::Spec();
  spec.connect_timeout = std::chrono::seconds(2);
  Agent agent(spec);
  agent.Step(node::Boot{});
  agent.Step(node::StreamLost{"connection refused"});
  EXPECT_THAT(agent.Wait(std::chrono::seconds(3)), ElementsAre("exit 1"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("10.0.0.1:29400 within 2 s (connection refused)"));
}

TEST(NodeMachineTest, OwnFailuresAreWorkersThatFailedAndFaultsOfTheNode) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Reap(1, 0, 0);
  EXPECT_TRUE(agent.machine_.OwnFailures().empty());
  agent.Reap(1, 1, 7);
  std::vector<NodeMachine::OwnFailure> own = agent.machine_.OwnFailures();
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].failure.worker->exit_code, 7);

  Agent without_keeper;
  without_keeper.Up();
  without_keeper.Run(1);
  without_keeper.Step(node::KeeperLost{"killed by signal 9"});
  own = without_keeper.machine_.OwnFailures();
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].failure.kind, CauseKind::kKeeperDied);
}

TEST(NodeMachineTest, WorkersThatTheStopEndsAreReportedTogether) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "test"});
  EXPECT_THAT(agent.Reap(1, 0, 0, SIGTERM), IsEmpty());
  EXPECT_THAT(agent.Reap(1, 1, 0), ElementsAre("send ended g1"));
  EXPECT_EQ(agent.last_ended_, 2u);
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}), ElementsAre("send stopped g1"));
  agent.Step(node::StreamLost{"reset"});
  EXPECT_THAT(agent.Step(node::StreamUp{}),
              ElementsAre("send joined g1", "send prepared g1", "send started g1", "send ended g1",
                          "send stopped g1"));
}

TEST(NodeMachineTest, WorkersThatEndSlowlyAreReportedWithTheBeats) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "test"});
  EXPECT_THAT(agent.Reap(1, 0, 0, SIGTERM), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(600)), ElementsAre("send ended g1"));
  EXPECT_THAT(agent.Reap(1, 1, 0, SIGTERM), ElementsAre("send ended g1"));
  EXPECT_EQ(agent.last_ended_, 1u);
}

TEST(NodeMachineTest, WhatMayBeACauseIsReportedByItself) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(9), "test"});
  EXPECT_THAT(agent.Reap(1, 0, contract::kExitConfig), ElementsAre("send exited g1"));
  EXPECT_THAT(agent.Reap(1, 1, 0, SIGKILL), ElementsAre("send exited g1"));
}

}  // namespace
}  // namespace fsdprun
