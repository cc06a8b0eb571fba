#include "agent/node/node_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace fsdprun {
namespace {

using node::Phase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kMessageNames[][12] = {"beat",   "joined", "prepared", "started",
                                      "exited", "fault",  "stopped",  "left"};

/// Drives a NodeMachine and writes down its actions: "send prepared g1", "kill g1".
class Agent {
 public:
  explicit Agent(NodeSpec spec = Spec()) : machine_(std::move(spec)) {}

  static NodeSpec Spec() {
    NodeSpec spec;
    spec.node.incarnation = Incarnation(7);
    spec.node.name = "node-7";
    spec.node.local_world_size = 2;
    spec.coordinator_endpoint = "10.0.0.1:29400";
    return spec;
  }
  std::vector<std::string> Step(const node::Event& event) {
    const node::Effects effects = machine_.Step(event, now_);
    wake_at_ = effects.wake_at;
    EXPECT_EQ(machine_.CheckInvariants(), "");
    std::vector<std::string> words;
    for (const node::Action& action : effects.actions) {
      words.push_back(std::visit([this](const auto& a) { return Words(a); }, action));
    }
    return words;
  }
  std::vector<std::string> Order(uint64_t g, CoordinatorMessage message) {
    return Step(ToAgent{Incarnation(7), Generation(g), std::move(message)});
  }
  std::vector<std::string> Prepare(uint64_t g, int group_rank = 0) {
    RankAssignment a;
    a.generation = Generation(g);
    a.group_rank = group_rank;
    a.rank_offset = group_rank * 2;
    a.local_world_size = 2;
    a.world_size = 4;
    return Order(g, PrepareGeneration{a});
  }
  std::vector<std::string> Reap(uint64_t g, int local_rank, int code, int signal = 0) {
    WorkerExit exit;
    exit.local_rank = local_rank;
    exit.exit_code = code;
    exit.signal = signal;
    return Step(node::WorkerReaped{Generation(g), exit});
  }
  std::vector<std::string> Wait(Duration d) {
    std::vector<std::string> words;
    const MonoTime end = now_ + d;
    while (now_ < end) {
      now_ = std::min(end, std::max(wake_at_, now_));
      if (wake_at_ > now_) {
        continue;
      }
      for (const std::string& word : Step(node::TimerDue{})) {
        if (word.find("beat") == std::string::npos) {
          words.push_back(word);
        } else {
          ++beats_;
        }
      }
    }
    return words;
  }
  void Up() {
    Step(node::Boot{});
    Step(node::KeeperReady{});
    Step(node::StreamUp{});
    Order(0, AdmitAgent{});
  }
  void Run(uint64_t g) {
    Prepare(g);
    Step(node::LogsAndStoreReady{Generation(g), StoreEndpoint{"10.0.0.1", 30000}});
    Order(g, CommitGeneration{StoreEndpoint{"10.0.0.1", 30000}});
    Step(node::WorkersSpawned{Generation(g), {100, 101}});
    ASSERT_EQ(machine_.phase(), Phase::kRunning);
  }

  NodeMachine machine_;
  MonoTime now_{std::chrono::hours(1)};
  MonoTime wake_at_ = MonoTime::max();
  int beats_ = 0;
  WorkerExit last_exit_;
  std::string exit_message_;
  RankAssignment spawned_;

 private:
  static std::string Of(Generation g) { return " g" + std::to_string(g.value()); }
  static std::string Ms(Duration d) {
    return std::to_string(d / std::chrono::milliseconds(1)) + "ms";
  }
  std::string Words(const node::Send& a) {
    if (const auto* exited = std::get_if<WorkerExited>(&a.message.message)) {
      last_exit_ = exited->exit;
    }
    return std::string("send ") + kMessageNames[a.message.message.index()] +
           Of(a.message.generation);
  }
  std::string Words(const node::StartKeeper& a) { return "keeper in " + Ms(a.delay); }
  std::string Words(const node::ReconnectStream& a) { return "connect in " + Ms(a.delay); }
  std::string Words(const node::PrepareNode& a) {
    return "prepare" + Of(a.assignment.generation) + (a.reset_store ? " store" : "");
  }
  std::string Words(const node::SpawnWorkers& a) {
    spawned_ = a.assignment;
    return "spawn" + Of(a.assignment.generation);
  }
  std::string Words(const node::SignalWorkers& a) {
    return "signal " + std::to_string(a.signal) + Of(a.generation);
  }
  std::string Words(const node::KillWorkers& a) { return "kill" + Of(a.generation); }
  std::string Words(const node::KillOrphans& a) { return "kill orphans" + Of(a.generation); }
  std::string Words(const node::Exit& a) {
    exit_message_ = a.message;
    return "exit " + std::to_string(a.code);
  }
};

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
  EXPECT_EQ(agent.beats_, 10);
  EXPECT_THAT(agent.Reap(1, 0, 0), ElementsAre("send exited g1"));
  agent.Reap(1, 1, 0);
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}), ElementsAre("send stopped g1"));
  EXPECT_THAT(agent.Order(0, ReleaseAgent{0, ""}), ElementsAre("send left g1", "exit 0"));
}

TEST(NodeMachineTest, StopIsTermThenKillThenWedged) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_THAT(agent.Order(1, StopWorkers{SIGTERM, std::chrono::seconds(2), "test"}),
              ElementsAre("signal 15 g1"));
  agent.Reap(1, 0, 0, SIGTERM);
  EXPECT_TRUE(agent.last_exit_.killed_by_us);
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(1900)), IsEmpty());
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

TEST(NodeMachineTest, LostCoordinatorEndsEverythingWithinASecond) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.Step(node::StreamLost{"connection refused"});
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(490)), IsEmpty());
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(20)), ElementsAre("kill g1"));
  EXPECT_THAT(agent.Wait(std::chrono::milliseconds(400)), ElementsAre("exit 1"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("10.0.0.1:29400"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("connection refused"));
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

TEST(NodeMachineTest, FirstOperatorSignalIsPassedOnTheSecondKills) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_THAT(agent.Step(node::OperatorSignal{SIGINT}), ElementsAre("send left g1", "signal 2 g1"));
  EXPECT_THAT(agent.Step(node::OperatorSignal{SIGINT}), ElementsAre("kill g1"));
  EXPECT_THAT(agent.Step(node::AllWorkersGone{Generation(1)}),
              ElementsAre("send stopped g1", "send left g1", "exit 1"));
}

TEST(NodeMachineTest, RejectionEndsTheAgentUnlessItMayRejoin) {
  Agent agent;
  agent.Up();
  EXPECT_THAT(agent.Order(0, RejectAgent{"silent", true}), ElementsAre("send joined g0"));
  EXPECT_THAT(agent.Order(0, RejectAgent{"node rank 0 is taken", false}),
              ElementsAre("send left g0", "exit 1"));
  EXPECT_THAT(agent.exit_message_, HasSubstr("node rank 0 is taken"));
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

}  // namespace
}  // namespace fsdprun
