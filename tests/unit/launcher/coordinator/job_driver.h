#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/coordinator/job_machine.h"

namespace fsdprun {

/// Drives a JobMachine and records its messages as text, such as "prepare 1 g1 rank 0", and behind
/// those what they are followed by, such as "finish 0".
class Job {
 public:
  explicit Job(JobSpec spec)
      : owned_(std::make_unique<JobMachine>(spec)), dead_after_(spec.dead_after) {}

  /// Of a coordinator that takes over what `before` has left.
  Job(const JobSpec& spec, const Job& before)
      : owned_(std::make_unique<JobMachine>(spec, *before.record_, before.now_)),
        now_(before.now_),
        dead_after_(spec.dead_after) {}

  std::vector<std::string> Step(const job::Event& event) {
    const job::Effects effects = machine_.Step(event, now_);
    wake_at_ = effects.wake_at;
    warning_.clear();
    EXPECT_EQ(machine_.CheckInvariants(), "");
    record_ = effects.persist ? effects.persist : record_;
    std::vector<std::string> words;
    for (const ToAgent& message : effects.messages) {
      words.push_back(Words(message));
    }
    words.insert(words.end(), effects.actions.size(), "check place");
    for (const job::News& news : effects.news) {
      if (std::string text = std::visit([this](const auto& what) { return Hear(what); }, news);
          !text.empty()) {
        words.push_back(std::move(text));
      }
    }
    return words;
  }
  std::vector<std::string> Say(uint64_t who, uint64_t g, AgentMessage message) {
    return Step(FromAgent{Incarnation(who), Generation(g), std::move(message)});
  }
  std::vector<std::string> Join(uint64_t who, std::optional<int> rank = {}, uint64_t held = 0,
                                const std::string& name = "") {
    NodeInfo info;
    info.incarnation = Incarnation(who);
    info.name = name.empty() ? "node-" + std::to_string(who) : name;
    info.address = "10.0.0." + std::to_string(who);
    info.local_world_size = 2;
    info.has_successor = has_successor_;
    info.requested_node_rank = rank;
    return Say(who, held, AgentJoined{info, Generation(held), {}});
  }
  std::vector<std::string> Prepared(uint64_t who, uint64_t g) {
    return Say(who, g, AgentPrepared{StoreEndpoint{"10.0.0.1", 30000}});
  }
  std::vector<std::string> Exit(uint64_t who, uint64_t g, int local_rank, int code,
                                int signal = 0) {
    WorkerExit exit;
    exit.local_rank = local_rank;
    exit.rank = local_rank;
    exit.exit_code = code;
    exit.signal = signal;
    return Say(who, g, WorkerExited{exit});
  }
  /// Advances the time by `d` and fires the machine's timers when they are due; the agents in
  /// `alive` send a heartbeat every 0.5 s.
  std::vector<std::string> Wait(Duration d, std::vector<uint64_t> alive = {}) {
    std::vector<std::string> words;
    const MonoTime end = now_ + d;
    MonoTime next_heartbeat = now_;
    while (now_ < end) {
      now_ = std::min({end, std::max(wake_at_, now_), next_heartbeat});
      const auto keep = [&words](const std::vector<std::string>& more) {
        words.insert(words.end(), more.begin(), more.end());
      };
      if (now_ == next_heartbeat) {
        next_heartbeat += std::chrono::milliseconds(500);
        for (const uint64_t who : alive) {
          keep(Say(who, 0, AgentHeartbeat{}));
        }
      }
      keep(Step(job::TimerDue{}));
    }
    return words;
  }
  /// Two nodes of two workers each run generation 1.
  void RunTwo() {
    Join(1);
    Join(2);
    Start(1, {1, 2});
  }
  /// The same of three.
  void RunThree() {
    for (const uint64_t who : {1, 2, 3}) {
      Join(who);
    }
    Start(1, {1, 2, 3});
  }
  void Start(uint64_t g, std::vector<uint64_t> who) {
    for (const uint64_t w : who) {
      Prepared(w, g);
    }
    for (const uint64_t w : who) {
      Say(w, g, AgentStarted{});
    }
  }

  std::unique_ptr<JobMachine> owned_;  // The parts of a machine know one another: it does not move.
  JobMachine& machine_ = *owned_;
  MonoTime now_{std::chrono::hours(1)};
  MonoTime wake_at_ = MonoTime::max();
  /// Of the last step.
  std::string warning_;
  Duration stalled_{};
  /// The latest.
  std::optional<job::Record> record_;
  /// What has become of nodes and worlds.
  std::vector<std::string> history_;
  std::string last_release_;
  bool last_is_cut_off_ = false;
  bool last_goes_on_ = false;
  std::optional<JobOutcome> finished_;
  /// Said by all that join.
  bool has_successor_ = false;

 private:
  const Duration dead_after_;

  template <class Other>
  std::string Hear(const Other& /*what*/) {
    return "";
  }
  std::string Hear(const job::JobFinished& finished) {
    finished_ = finished.outcome;
    return "finish " + std::to_string(finished.outcome.exit_code);
  }
  std::string Hear(const job::Warned& warned) {
    warning_ = warned.text;
    return "";
  }
  std::string Hear(const job::Stalled& stalled) {
    stalled_ = stalled.lateness;
    return "";
  }
  std::string Hear(const job::NodeLost& lost) {
    return Note("lost " + lost.name + " " + lost.what);
  }
  std::string Hear(const job::WorldFormed& formed) {
    return Note("formed g" + std::to_string(formed.generation.value()) + " of " +
                std::to_string(formed.nodes) + " nodes, " + std::to_string(formed.workers) +
                " workers");
  }
  std::string Hear(const job::WorldStopping& stopping) {
    const bool is_failure = stopping.kind == job::StopKind::kFailure;
    return Note("stopping g" + std::to_string(stopping.generation.value()) +
                (is_failure ? " after a failure: " : ": ") + stopping.why);
  }
  std::string Hear(const job::NodeDraining& draining) {
    return Note("draining " + draining.node.name + " @" + std::to_string(draining.group_rank));
  }
  std::string Hear(const job::NodeDrained& drained) { return Note("drained " + drained.node.name); }
  std::string Hear(const job::JobScaled& scaled) {
    return Note("scaled to " + std::to_string(scaled.limits.min_nodes) + ":" +
                std::to_string(scaled.limits.max_nodes));
  }
  std::string Hear(const job::NodeQuarantined& quarantined) {
    return Note("quarantined " + quarantined.node.node.name + " after " +
                std::to_string(quarantined.node.breaks));
  }
  std::string Hear(const job::QuarantineLifted& lifted) {
    return Note("lifted " + lifted.node.node.name + ": " + lifted.why);
  }
  std::string Hear(const job::QuarantineWaived& waived) {
    return Note("waived " + waived.node.node.name + ": " + waived.why);
  }
  std::string Note(std::string text) {
    history_.push_back(std::move(text));
    return "";
  }

  std::string Words(const ToAgent& to) {
    const std::string who = std::to_string(to.incarnation.value());
    const std::string g = " g" + std::to_string(to.generation.value());
    if (const auto* m = std::get_if<AdmitAgent>(&to.message)) {
      EXPECT_EQ(m->node_lease, dead_after_);
      EXPECT_TRUE(m->terms.has_value());
      return "admit " + who;
    }
    if (const auto* m = std::get_if<RejectAgent>(&to.message)) {
      return (m->rejoin ? "rejoin " : "reject ") + who + ": " + m->reason;
    }
    if (const auto* m = std::get_if<PrepareGeneration>(&to.message)) {
      return "prepare " + who + g + " rank " + std::to_string(m->assignment.group_rank) + " of " +
             std::to_string(m->assignment.group_world_size) + " restart " +
             std::to_string(m->assignment.restart_count) +
             (m->assignment.world_of_attempt == 0
                  ? ""
                  : " world " + std::to_string(m->assignment.world_of_attempt));
    }
    if (const auto* m = std::get_if<CommitGeneration>(&to.message)) {
      return "commit " + who + g + " " + m->store.address + ":" + std::to_string(m->store.port);
    }
    if (std::holds_alternative<StopWorkers>(to.message)) {
      const StopWorkers& stop = std::get<StopWorkers>(to.message);
      return "stop " + who + g + " signal " + std::to_string(stop.signal) + " grace " +
             std::to_string(stop.grace / std::chrono::seconds(1));
    }
    if (const auto* pass = std::get_if<PassSignal>(&to.message)) {
      return "pass " + who + g + " signal " + std::to_string(pass->signal);
    }
    if (std::holds_alternative<HeartbeatHeard>(to.message)) {
      return "heard " + who;
    }
    if (const auto* m = std::get_if<LeftOut>(&to.message)) {
      return (m->why.empty() ? "left out no longer " : "left out ") + who;
    }
    last_release_ = std::get<ReleaseAgent>(to.message).reason;
    last_is_cut_off_ = std::get<ReleaseAgent>(to.message).cut_off;
    last_goes_on_ = std::get<ReleaseAgent>(to.message).job_goes_on;
    return "release " + who + " " + std::to_string(std::get<ReleaseAgent>(to.message).exit_code);
  }
};

inline JobSpec Spec(int min, int max, int restarts) {
  JobSpec spec;
  spec.min_nodes = min;
  spec.max_nodes = max;
  spec.max_restarts = restarts;
  return spec;
}

/// Of nodes without ranks of their own.
inline JobSpec FreeSpec(int min, int max, int restarts) {
  JobSpec spec = Spec(min, max, restarts);
  spec.node_ranks_bind = false;
  return spec;
}

}  // namespace fsdprun
