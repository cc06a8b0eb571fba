#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/node/node_machine.h"

namespace fsdprun {

inline constexpr char kMessageNames[][12] = {
    "heartbeat", "joined", "prepared", "started", "exited", "fault", "stopped", "left", "ended"};

/// Drives a NodeMachine and records its actions as text: "send prepared g1", "kill g1". Heartbeats
/// that ask are answered at once.
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
    if (effects.persist.has_value()) {
      record_ = effects.persist;
    }
    EXPECT_EQ(machine_.CheckInvariants(), "");
    for (const node::News& news : effects.news) {
      if (const auto* ended = std::get_if<node::WorkerEnded>(&news)) {
        last_exit_ = ended->exit;
      }
    }
    std::vector<std::string> words;
    for (const FromAgent& message : effects.messages) {
      words.push_back(Words(message));
    }
    for (const node::Action& action : effects.actions) {
      words.push_back(std::visit([this](const auto& a) { return Words(a); }, action));
    }
    if (answers_ && std::any_of(effects.messages.begin(), effects.messages.end(), Asks)) {
      Order(0, HeartbeatHeard{});
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
  /// `age`: since the worker ended; `error_age`: since it wrote its error file.
  std::vector<std::string> Reap(uint64_t g, int local_rank, int code, int signal = 0,
                                Duration age = {}, std::optional<Duration> error_age = {}) {
    WorkerExit exit;
    exit.local_rank = local_rank;
    exit.exit_code = code;
    exit.signal = signal;
    return Step(node::WorkerReaped{Generation(g), exit, age, error_age});
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
        if (word.find("heartbeat") == std::string::npos) {
          words.push_back(word);
        } else {
          ++heartbeats_;
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
    ASSERT_EQ(machine_.phase(), node::Phase::kRunning);
  }

  static bool Asks(const FromAgent& message) {
    const auto* heartbeat = std::get_if<AgentHeartbeat>(&message.message);
    return heartbeat != nullptr && heartbeat->asks;
  }

  NodeMachine machine_;
  bool answers_ = true;
  MonoTime now_{std::chrono::hours(1)};
  MonoTime wake_at_ = MonoTime::max();
  int heartbeats_ = 0;
  WorkerExit last_exit_;
  /// Of the latest message of its kind.
  /// How many workers the latest summary tells of.
  size_t last_ended_ = 0;
  Duration last_age_{};  // of an exit that is told by itself, or a fault
  Progress last_progress_;
  std::optional<StoreEndpoint> last_store_;
  std::string exit_message_;
  RankAssignment spawned_;
  /// The latest that was to be kept.
  std::optional<NodeRecord> record_;

 private:
  static std::string Of(Generation g) { return " g" + std::to_string(g.value()); }
  static std::string Ms(Duration d) {
    return std::to_string(d / std::chrono::milliseconds(1)) + "ms";
  }
  std::string Words(const FromAgent& a) {
    if (const auto* exited = std::get_if<WorkerExited>(&a.message)) {
      last_age_ = exited->age;
    } else if (const auto* ended = std::get_if<WorkersEnded>(&a.message)) {
      last_ended_ = ended->exits.size();
    } else if (const auto* faulted = std::get_if<NodeFaulted>(&a.message)) {
      last_age_ = faulted->age;
    } else if (const auto* heartbeat = std::get_if<AgentHeartbeat>(&a.message)) {
      last_progress_ = heartbeat->progress;
    } else if (const auto* prepared = std::get_if<AgentPrepared>(&a.message)) {
      last_store_ = prepared->store;
    }
    return std::string("send ") + kMessageNames[a.message.index()] + Of(a.generation);
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
  std::string Words(const node::AdoptWorkers& a) {
    spawned_ = a.assignment;
    return "adopt" + Of(a.assignment.generation);
  }
  std::string Words(const node::SignalWorkers& a) {
    return "signal " + std::to_string(a.signal) + Of(a.generation);
  }
  std::string Words(const node::NotifyWorkers& a) {
    return "notify " + std::to_string(a.signal) + Of(a.generation);
  }
  std::string Words(const node::KillWorkers& a) { return "kill" + Of(a.generation); }
  std::string Words(const node::KillOrphans& a) { return "kill orphans" + Of(a.generation); }
  std::string Words(const node::Exit& a) {
    exit_message_ = a.message;
    return "exit " + std::to_string(a.code);
  }
};

}  // namespace fsdprun
