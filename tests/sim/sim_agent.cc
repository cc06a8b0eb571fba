#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

constexpr Nanos kConnectTakes = kMilli;
/// The longest of an attempt, times its patience.
constexpr Nanos kAttemptTakes = 5 * kSecond;
/// A keeper that sees its agent's socket close ends the workers within this time.
constexpr Nanos kOrphansEndWithin = 50 * kMilli;

}  // namespace

class World::AgentExecutor : public Agent::Executor {
 public:
  AgentExecutor(World& world, uint32_t index) : world_(world), index_(index) {}

  MonoTime Now() override { return Mono(world_.now_); }
  void Persist(const NodeRecord& record) override { world_.agents_[index_]->record = record; }
  void WakeAt(MonoTime at) override { world_.WakeAgentAt(index_, at); }
  void Send(FromAgent& message) override { world_.SendReport(index_, message); }
  void Execute(node::Action& action) override {
    std::visit([this](auto& what) { world_.Execute(index_, what); }, action);
  }
  void Hear(const node::News& /*news*/) override {}
  void OnEvent(const node::Event& /*event*/) override {
    seen_ = world_.agents_[index_]->machine.highest_seen();
    held_ = world_.agents_[index_]->prepared;
  }
  void OnStepped(const node::Event& event, const node::Effects& effects) override {
    const Agent& agent = *world_.agents_[index_];
    if (const auto* order = std::get_if<ToAgent>(&event)) {
      world_.CheckOrder(*order, held_, effects);
    }
    if (agent.machine.highest_seen() < seen_) {
      world_.Violate("the generation went back on " + world_.slots_[agent.slot].name);
    }
    if (effects.actions.empty() && std::holds_alternative<node::TimerDue>(event)) {
      return;  // Only a beat.
    }
    if (const std::string broken = agent.machine.CheckInvariants(); !broken.empty()) {
      world_.Violate("NodeMachine of " + world_.slots_[agent.slot].name + ": " + broken);
    }
  }

 private:
  World& world_;
  const uint32_t index_;
  /// Before the present step.
  Generation seen_;
  Generation held_;
};

uint32_t World::StartAgent(int slot_index) {
  Slot& slot = slots_[slot_index];
  NodeSpec spec;
  spec.node.incarnation = Incarnation(random_.Next() | 1);
  spec.node.name = slot.name;
  spec.node.address =
      "10.0." + std::to_string(slot_index / 250) + "." + std::to_string(slot_index % 250 + 1);
  spec.node.local_world_size = options_.local_world_size;
  spec.node.role = slot_index % 3 == 2 ? "reader" : "trainer";
  spec.node.requested_node_rank = slot.node_rank ? slot.node_rank : slot.preferred_rank;
  spec.cannot_run = slot.lacks_program ? "no such file" : "";
  spec.node_lease = ClocksOf(options_.mix).node_lease;
  spec.heartbeat_interval = ClocksOf(options_.mix).heartbeat_interval;
  spec.stream_silence = ClocksOf(options_.mix).stream_silence;
  spec.coordinator_endpoint = "10.0.0.1:29400";
  spec.coordinator_grace = CoordinatorGrace(options_.mix);
  spec.stop_grace = Duration(static_cast<Nanos>(options_.mix.stop_grace_s * kSecond));
  spec.node.has_successor = options_.mix.weights.count(FaultKind::kReplaceAgent) > 0;
  const uint32_t index = static_cast<uint32_t>(agents_.size());
  auto agent = std::make_unique<Agent>(spec, std::make_unique<AgentExecutor>(*this, index));
  agent->slot = slot_index;
  agent->incarnation = spec.node.incarnation;
  slot_of_[agent->incarnation.value()] = slot_index;
  agents_.push_back(std::move(agent));
  slot.agent = index;
  referee_.AgentStarted(now_, slot_index, slot.node_rank.value_or(slot_index));
  StepAgent(index, node::Boot{});
  StarveAgent(index);
  return index;
}

void World::StepAgent(uint32_t index, const node::Event& event) {
  Agent& agent = *agents_[index];
  if (!agent.alive) {
    return;
  }
  if (agent.paused_until > now_) {
    AtInLife(agent.paused_until, index, [this, index, event] { StepAgent(index, event); });
    return;
  }
  agent.driver.Feed(event);
}

/// A later wake-up is served by the earlier item, which the machine answers with the new time.
void World::WakeAgentAt(uint32_t index, MonoTime wake) {
  Agent& agent = *agents_[index];
  if (wake == MonoTime::max()) {
    return;
  }
  const Nanos at = std::max(Virtual(wake), now_);
  if (agent.timer_at == 0 || at < agent.timer_at) {
    agent.timer_at = at;
    queue_.Push(at, ItemKind::kNodeTimer, index);
  }
}

void World::CheckOrder(const ToAgent& order, Generation held, const node::Effects& effects) {
  const auto touches_workers = [](const node::Action& action) {
    return std::holds_alternative<node::SpawnWorkers>(action) ||
           std::holds_alternative<node::SignalWorkers>(action) ||
           std::holds_alternative<node::NotifyWorkers>(action) ||
           std::holds_alternative<node::KillWorkers>(action) ||
           std::holds_alternative<node::KillOrphans>(action);
  };
  referee_.fence().OrderReceived(
      order.generation, held,
      std::any_of(effects.actions.begin(), effects.actions.end(), touches_workers));
}

void World::SendReport(uint32_t index, FromAgent& report) {
  Agent& agent = *agents_[index];
  if (std::holds_alternative<AgentPrepared>(report.message)) {
    const Generation g = report.generation;
    if (g < agent.acknowledged) {
      Violate("an older generation was acknowledged");
    }
    agent.acknowledged = g;
    for (const Process& process : agent.processes) {
      if (process.alive && process.generation < g) {
        Violate("a worker of an older generation runs where a newer one is acknowledged");
      }
    }
  }
  if (agent.stream != 0) {
    SendUp(agent.stream - 1, report);
  }
}

void World::Execute(uint32_t index, const node::StartKeeper& start) {
  AtInLife(now_ + start.delay.count() + kMilli, index, [this, index] {
    Agent& agent = *agents_[index];
    if (slots_[agent.slot].no_keeper_until > now_) {
      StepAgent(index, node::KeeperLost{"could not be started: cannot allocate memory"});
      return;
    }
    agent.keeper_alive = agent.alive;
    agent.told.clear();
    StepAgent(index, node::KeeperReady{});
  });
}

void World::Execute(uint32_t index, const node::ReconnectStream& reconnect) {
  CloseByAgent(index);
  const Nanos begins = now_ + reconnect.delay.count() + kConnectTakes;
  const Nanos until = begins + reconnect.patience * kAttemptTakes;
  AtInLife(begins, index, [this, index, until] { Connect(index, until); });
}

void World::Execute(uint32_t index, const node::PrepareNode& prepare) {
  agents_[index]->prepared = prepare.assignment.generation;
  AtInLife(now_ + random_.Between(kMilli, 10 * kMilli), index,
           [this, index, g = prepare.assignment.generation, has_store = prepare.reset_store] {
             Prepare(index, g, has_store);
           });
}

void World::Execute(uint32_t index, const node::SpawnWorkers& spawn) {
  const RankAssignment& a = spawn.assignment;
  const Generation g = a.generation;
  Agent& agent = *agents_[index];
  if (agent.ordered == g) {
    return;  // By an agent before this one; the keeper tells again what has become of it.
  }
  agent.ordered = g;
  agent.told.clear();
  CheckWorld(agent, a);
  const bool fails = std::exchange(agent.armed.fail_spawn, false);
  const int startable =
      fails ? static_cast<int>(random_.Below(static_cast<uint64_t>(a.local_world_size)))
            : a.local_world_size;
  std::vector<int64_t> pids;
  for (int i = 0; i < startable; ++i) {
    pids.push_back(StartWorker(index, a, i));
  }
  if (fails) {
    InjectedFault fault = FaultOn(FaultKind::kFailSpawn, agent.slot, now_);
    fault.generation = fault.breaks = g;
    referee_.ledger().Add(fault);
    At(now_ + random_.Between(kMilli, 5 * kMilli), [this, index, g, startable] {
      TellAgent(index, g, node::SpawnFailed{g, startable, "resource temporarily unavailable"});
    });
    return;
  }
  At(now_ + random_.Between(kMilli, 5 * kMilli), [this, index, g, pids] {
    TellAgent(index, g, node::WorkersSpawned{g, pids});
    StepAgent(index, node::WorkerProgress{g, 0, {12, 100, "loss 2.5"}});
  });
  if (options_.mix.work_s > 0) {
    At(now_ + InMix(options_.mix.work_s) + random_.Between(0, 500 * kMilli),
       [this, index, g] { FinishWork(index, g); });
  }
}

/// What is known of them comes from the keeper.
void World::Execute(uint32_t index, const node::AdoptWorkers& adopt) {
  if (agents_[index]->ordered != adopt.assignment.generation) {
    Violate("workers were adopted that nobody has ordered");
  }
}

void World::Execute(uint32_t index, const node::SignalWorkers& signal) {
  Agent& agent = *agents_[index];
  referee_.ledger().WorkersTold(now_, signal.generation, agent.slot);
  for (size_t i = 0; signal.signal != 0 && i < agent.processes.size(); ++i) {
    Process& process = agent.processes[i];
    if (process.generation != signal.generation || !process.alive || process.ignores_term ||
        process.dying || process.unkillable_until > now_) {
      continue;
    }
    process.dying = true;
    const int kind = static_cast<int>(random_.Below(3));  // saves and exits 0, is killed, fails
    At(now_ + random_.Between(kMilli, 200 * kMilli), [this, index, i, kind, s = signal.signal] {
      EndProcess(index, i, {.exit_code = kind == 2 ? 1 : 0, .signal = kind == 1 ? s : 0});
    });
  }
}

void World::Execute(uint32_t index, const node::KillWorkers& kill) {
  KillGenerationOf(index, kill.generation);
}

void World::Execute(uint32_t index, const node::KillOrphans& kill) {
  KillGenerationOf(index, kill.generation);
}

void World::Execute(uint32_t index, const node::Exit& exit) {
  Log(slots_[agents_[index]->slot].name + " exits with " + std::to_string(exit.code) + ": " +
      exit.message);
  const int slot = agents_[index]->slot;
  if (agents_[index]->was_admitted) {  // else it has as long as it likes to find the coordinator
    referee_.AgentExited(now_, slot, exit.code);
  }
  AgentDies(index, true);
  RestartLater(slot, kSecond, 5 * kSecond);
}

/// The agent is no more. On a living host its stream closes and its keeper ends the workers; else
/// all vanishes silently.
void World::AgentDies(uint32_t index, bool host_lives) {
  Agent& agent = *agents_[index];
  if (!agent.alive) {
    return;
  }
  agent.alive = false;
  if (slots_[agent.slot].agent == index) {
    slots_[agent.slot].agent.reset();
  }
  if (host_lives) {
    CloseByAgent(index);
  } else if (agent.stream != 0) {
    EndOfMachine(agent.stream - 1);
  }
  referee_.AgentDied(now_, agent.slot, slots_[agent.slot].node_rank.value_or(agent.slot), index);
  if (host_lives) {
    At(now_ + random_.Between(0, kOrphansEndWithin), [this, index] { EndOrphans(index); });
    return;
  }
  for (Process& process : agent.processes) {
    process.unkillable_until = 0;
  }
  EndOrphans(index);
}

void World::RestartLater(int slot, Nanos low, Nanos high) {
  At(now_ + random_.Between(low, high), [this, slot] {
    const Slot& s = slots_[slot];
    if (!s.agent && !s.is_extra && !s.is_scrapped && !job_->outcome() && !coordinator_died_) {
      StartAgent(slot);
    }
  });
}

}  // namespace fsdprun::sim
