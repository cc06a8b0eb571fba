#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

constexpr Nanos kKillTakes = 2 * kMilli;
constexpr Nanos kConnectTakes = kMilli;
/// A keeper that sees its agent's socket close ends the workers within this time.
constexpr Nanos kOrphansEndWithin = 50 * kMilli;

int64_t PidOf(size_t process_index) { return 1001 + static_cast<int64_t>(process_index); }

}  // namespace

uint32_t World::StartAgent(int slot_index) {
  Slot& slot = slots_[slot_index];
  NodeSpec spec;
  spec.node.incarnation = Incarnation(random_.Next() | 1);
  spec.node.name = slot.name;
  spec.node.address =
      "10.0." + std::to_string(slot_index / 250) + "." + std::to_string(slot_index % 250 + 1);
  spec.node.local_world_size = options_.local_world_size;
  spec.node.role = slot_index % 3 == 2 ? "reader" : "trainer";
  spec.node.requested_node_rank = slot.node_rank;
  spec.coordinator_endpoint = "10.0.0.1:29400";
  spec.coordinator_loss_grace =
      Duration(static_cast<Nanos>(options_.mix.coordinator_loss_grace_s * kSecond));
  spec.stop_grace = Duration(static_cast<Nanos>(options_.mix.stop_grace_s * kSecond));
  auto agent = std::make_unique<Agent>(spec);
  agent->slot = slot_index;
  agent->incarnation = spec.node.incarnation;
  agents_.push_back(std::move(agent));
  const uint32_t index = static_cast<uint32_t>(agents_.size() - 1);
  slot.agent = index;
  StepAgent(index, node::Boot{});
  return index;
}

void World::StepAgent(uint32_t index, const node::Event& event) {
  Agent& agent = *agents_[index];
  if (!agent.alive) {
    return;
  }
  const Generation seen = agent.machine.highest_seen();
  node::Effects& effects = node_effects_;
  agent.machine.Step(event, Mono(now_), effects);
  if (agent.machine.highest_seen() < seen) {
    Violate("the generation went back on " + slots_[agent.slot].name);
  }
  const bool only_a_beat =
      effects.actions.size() <= 1 && std::holds_alternative<node::TimerDue>(event);
  for (node::Action& action : effects.actions) {
    std::visit([&](auto& a) { Execute(index, a); }, action);
  }
  if (!only_a_beat) {
    const std::string broken = agent.machine.CheckInvariants();
    if (!broken.empty()) {
      Violate("NodeMachine of " + slots_[agent.slot].name + ": " + broken);
    }
  }
  if (effects.wake_at == MonoTime::max() || !agent.alive) {
    return;
  }
  // A later wake-up is served by the earlier item, which the machine answers with the new time.
  const Nanos at = std::max(Virtual(effects.wake_at), now_);
  if (agent.timer_at == 0 || at < agent.timer_at) {
    agent.timer_at = at;
    queue_.Push(at, ItemKind::kNodeTimer, index);
  }
}

void World::Execute(uint32_t index, node::Send& send) {
  Agent& agent = *agents_[index];
  if (std::holds_alternative<AgentPrepared>(send.message.message)) {
    const Generation g = send.message.generation;
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
    SendUp(agent.stream - 1, send.message);
  }
}

void World::Execute(uint32_t index, const node::StartKeeper& start) {
  At(now_ + start.delay.count() + kMilli, [this, index] {
    agents_[index]->keeper_alive = agents_[index]->alive;
    StepAgent(index, node::KeeperReady{});
  });
}

void World::Execute(uint32_t index, const node::ReconnectStream& reconnect) {
  CloseByAgent(index);
  At(now_ + reconnect.delay.count() + kConnectTakes, [this, index] { Connect(index); });
}

void World::Execute(uint32_t index, const node::PrepareNode& prepare) {
  const RankAssignment a = prepare.assignment;
  const bool has_store = prepare.reset_store;
  At(now_ + random_.Between(kMilli, 10 * kMilli), [this, index, a, has_store] {
    Agent& agent = *agents_[index];
    if (agent.fail_next_prepare) {
      agent.fail_next_prepare = false;
      StepAgent(index, node::PrepareFailed{a.generation, "no space left on device"});
      return;
    }
    std::optional<StoreEndpoint> store;
    if (has_store) {
      store = StoreEndpoint{"10.0.0.1", 30000};
    }
    StepAgent(index, node::LogsAndStoreReady{a.generation, store});
  });
}

void World::Execute(uint32_t index, const node::SpawnWorkers& spawn) {
  const RankAssignment& a = spawn.assignment;
  Agent& agent = *agents_[index];
  const RankAssignment& world = worlds_.emplace(a.generation, a).first->second;
  if (world.world_size != a.world_size || world.group_world_size != a.group_world_size ||
      world.master_port != a.master_port || a.master_port == 0) {
    Violate("two worlds in generation " + std::to_string(a.generation.value()));
  }
  const std::optional<int>& asked = slots_[agent.slot].node_rank;
  if (asked && a.group_world_size == options_.nodes && a.group_rank != *asked) {
    Violate("a complete world does not give the ranks that its nodes ask for");
  }
  std::vector<int64_t> pids;
  for (int i = 0; i < a.local_world_size; ++i) {
    const int rank = a.rank_offset + i;
    if (rank >= a.world_size ||
        !started_ranks_[a.generation].emplace(rank, agent.incarnation).second) {
      Violate("rank " + std::to_string(rank) + " was started twice or is outside the world");
    }
    agent.processes.push_back({a.generation, i});
    pids.push_back(PidOf(agent.processes.size() - 1));
  }
  started_ranks_.erase(started_ranks_.begin(),
                       started_ranks_.lower_bound(
                           Generation(a.generation.value() > 4 ? a.generation.value() - 4 : 0)));
  const Generation g = a.generation;
  At(now_ + random_.Between(kMilli, 5 * kMilli), [this, index, g, pids] {
    StepAgent(index, node::WorkersSpawned{g, pids});
    StepAgent(index, node::WorkerProgress{g, 0, {12, 100, "loss 2.5"}});
  });
  if (options_.mix.work_s > 0) {
    At(now_ + static_cast<Nanos>(options_.mix.work_s * kSecond) + random_.Between(0, 500 * kMilli),
       [this, index, g] { FinishWork(index, g); });
  }
}

void World::FinishWork(uint32_t index, Generation g) {
  for (size_t i = 0; i < agents_[index]->processes.size(); ++i) {
    const Process& process = agents_[index]->processes[i];
    if (process.generation == g && process.alive && !process.dying) {
      EndProcess(index, i, 0, 0, 0);
    }
  }
}

void World::Execute(uint32_t index, const node::SignalWorkers& signal) {
  Agent& agent = *agents_[index];
  for (size_t i = 0; i < agent.processes.size(); ++i) {
    Process& process = agent.processes[i];
    if (process.generation != signal.generation || !process.alive || process.ignores_term ||
        process.dying) {
      continue;
    }
    process.dying = true;
    const int kind = static_cast<int>(random_.Below(3));  // saves and exits 0, is killed, fails
    At(now_ + random_.Between(kMilli, 200 * kMilli), [this, index, i, kind, s = signal.signal] {
      EndProcess(index, i, kind == 2 ? 1 : 0, kind == 1 ? s : 0, 0);
    });
  }
}

void World::Execute(uint32_t index, const node::KillWorkers& kill) {
  KillGenerationOf(index, kill.generation);
}

void World::Execute(uint32_t index, const node::KillOrphans& kill) {
  KillGenerationOf(index, kill.generation);
}

void World::KillGenerationOf(uint32_t index, Generation g) {
  At(now_ + kKillTakes, [this, index, g] {
    bool any = false;
    for (size_t i = 0; i < agents_[index]->processes.size(); ++i) {
      const Process& process = agents_[index]->processes[i];
      if (process.generation == g && process.alive) {
        any = true;
        EndProcess(index, i, 0, SIGKILL, 0);
      }
    }
    if (!any) {
      StepAgent(index, node::AllWorkersGone{g});
    }
  });
}

/// The process is gone now; the node hears of it after `notice_delay`, and of the last one that all
/// are gone.
void World::EndProcess(uint32_t index, size_t process_index, int exit_code, int signal,
                       Nanos notice_delay) {
  Agent& agent = *agents_[index];
  Process& process = agent.processes[process_index];
  if (!process.alive) {
    return;
  }
  process.alive = false;
  const Generation g = process.generation;
  WorkerExit exit;
  exit.local_rank = process.local_rank;
  exit.pid = PidOf(process_index);
  exit.exit_code = exit_code;
  exit.signal = signal;
  exit.dumped_core = signal != 0;
  exit.error_message = exit_code != 0 ? "no space left" : "";
  exit.traceback = exit_code != 0 ? "at step 12" : "";
  exit.error_json = exit_code != 0 ? "{}" : "";
  exit.stderr_tail = {"step 12", "the end"};
  exit.log_path = "/logs/stderr.log";
  exit.exited_unix_ns = now_;
  At(now_ + notice_delay, [this, index, g, exit] {
    if (!agents_[index]->keeper_alive) {
      return;
    }
    StepAgent(index, node::WorkerReaped{g, exit});
  });
  if (!AnyAliveOf(index, g)) {
    At(now_ + notice_delay + kMilli,
       [this, index, g] { StepAgent(index, node::AllWorkersGone{g}); });
  }
}

void World::Execute(uint32_t index, const node::Exit& exit) {
  Log(slots_[agents_[index]->slot].name + " exits with " + std::to_string(exit.code) + ": " +
      exit.message);
  const int slot = agents_[index]->slot;
  AgentDies(index, true);
  if (!job_->outcome()) {
    RestartLater(slot, kSecond, 5 * kSecond);
  }
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
  }
  At(now_ + (host_lives ? kOrphansEndWithin : 0), [this, index] {
    for (Process& process : agents_[index]->processes) {
      process.alive = false;
    }
  });
}

void World::RestartLater(int slot, Nanos low, Nanos high) {
  At(now_ + random_.Between(low, high), [this, slot] {
    if (!slots_[slot].agent && !slots_[slot].is_extra && !job_->outcome()) {
      StartAgent(slot);
    }
  });
}

bool World::AnyAlive(uint32_t index) const {
  const std::vector<Process>& processes = agents_[index]->processes;
  return std::any_of(processes.begin(), processes.end(), [](const Process& p) { return p.alive; });
}

bool World::AnyAliveOf(uint32_t index, Generation g) const {
  const std::vector<Process>& processes = agents_[index]->processes;
  return std::any_of(processes.begin(), processes.end(),
                     [g](const Process& p) { return p.alive && p.generation == g; });
}

}  // namespace fsdprun::sim
