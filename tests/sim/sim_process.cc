#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

constexpr Nanos kKillTakes = 2 * kMilli;
/// Ports 20000 and up, so that each generation's store has its own for as long as it matters.
constexpr int kStorePorts = 40'000;

int StorePort(Generation g) { return 20'000 + static_cast<int>(g.value() % kStorePorts); }

}  // namespace

void World::Prepare(uint32_t index, Generation g, bool has_store) {
  Agent& agent = *agents_[index];
  if (!agent.alive) {
    return;
  }
  const auto note = [&](FaultKind kind) {
    InjectedFault fault = FaultOn(kind, agent.slot, now_);
    fault.generation = g;
    fault.breaks = kind == FaultKind::kFailPrepare ? g : Generation{};
    referee_.ledger().Add(fault);
  };
  if (std::exchange(agent.armed.hang_prepare, false)) {
    note(FaultKind::kHangPrepare);
    return;
  }
  if (std::exchange(agent.armed.fail_prepare, false)) {
    note(FaultKind::kFailPrepare);
    StepAgent(index, node::PrepareFailed{g, "no space left on device"});
    return;
  }
  std::optional<StoreEndpoint> store;
  if (has_store) {
    store = StoreEndpoint{"10.0.0.1", StorePort(g)};
    referee_.fence().StoreMade(g, StorePort(g));
  }
  StepAgent(index, node::LogsAndStoreReady{g, store});
}

/// At most one world per generation, in which each rank starts at most once.
void World::CheckWorld(const Agent& agent, const RankAssignment& a) {
  const RankAssignment& world = worlds_.emplace(a.generation, a).first->second;
  if (world.world_size != a.world_size || world.group_world_size != a.group_world_size ||
      world.master_port != a.master_port || a.master_port == 0) {
    Violate("two worlds in generation " + std::to_string(a.generation.value()));
  }
  const std::optional<int>& asked = slots_[agent.slot].node_rank;
  if (asked && a.group_world_size == options_.nodes && a.group_rank != *asked) {
    Violate("a complete world does not give the ranks that its nodes ask for");
  }
  for (int i = 0; i < a.local_world_size; ++i) {
    const int rank = a.rank_offset + i;
    if (rank >= a.world_size ||
        !started_ranks_[a.generation].emplace(rank, agent.incarnation).second) {
      Violate("rank " + std::to_string(rank) + " was started twice or is outside the world");
    }
  }
  started_ranks_.erase(started_ranks_.begin(),
                       started_ranks_.lower_bound(
                           Generation(a.generation.value() > 4 ? a.generation.value() - 4 : 0)));
  referee_.fence().StoreUsed(a.generation, a.master_port);
}

int64_t World::StartWorker(uint32_t index, const RankAssignment& a, int local_rank) {
  Agent& agent = *agents_[index];
  Process process;
  process.pid = next_pid_++;
  process.generation = a.generation;
  process.local_rank = local_rank;
  process.rank = a.rank_offset + local_rank;
  agent.processes.push_back(process);
  referee_.RankStarted(a.generation, process.rank);
  referee_.ProcessStarted(now_, {process.pid, agent.slot, index, a.generation});
  return process.pid;
}

void World::FinishWork(uint32_t index, Generation g) {
  Agent& agent = *agents_[index];
  for (size_t i = 0; i < agent.processes.size(); ++i) {
    const Process& process = agent.processes[i];
    if (process.generation != g || !process.alive || process.dying) {
      continue;
    }
    if (process.unkillable_until > now_) {
      At(process.unkillable_until + kMilli, [this, index, g] { FinishWork(index, g); });
      continue;
    }
    referee_.RankFinished(g, process.rank);
    EndProcess(index, i, {});
  }
}

void World::KillGenerationOf(uint32_t index, Generation g) {
  referee_.ledger().WorkersTold(now_, g, agents_[index]->slot);
  At(now_ + kKillTakes, [this, index, g] {
    const bool any = AnyLeftOf(index, g);
    for (size_t i = 0; i < agents_[index]->processes.size(); ++i) {
      Process& process = agents_[index]->processes[i];
      if (process.generation != g || !process.alive) {
        continue;
      }
      if (process.unkillable_until > now_) {
        process.kill_pending = true;
      } else {
        EndProcess(index, i, {.signal = SIGKILL});
      }
    }
    if (!any) {
      TellAgent(index, g, node::AllWorkersGone{g});
    }
  });
}

/// Uninterruptible sleep ends: a SIGKILL that waited has its effect now.
void World::Wake(uint32_t index, size_t process_index) {
  Process& process = agents_[index]->processes[process_index];
  if (!process.alive) {
    return;
  }
  if (process.kill_pending) {
    EndProcess(index, process_index, {.signal = SIGKILL});
  } else {
    referee_.BecameKillable(process.pid);
  }
}

/// The process runs no more from now on; the node hears of it later, and of the last one that all
/// are gone.
void World::EndProcess(uint32_t index, size_t process_index, const Ending& ending) {
  const Agent& agent = *agents_[index];
  Process& process = agents_[index]->processes[process_index];
  if (!process.alive) {
    return;
  }
  process.alive = false;
  referee_.ProcessEnded(now_, process.pid, agent.slot);
  WorkerExit exit;
  exit.local_rank = process.local_rank;
  exit.pid = process.pid;
  exit.exit_code = ending.exit_code;
  exit.signal = ending.signal;
  exit.dumped_core = ending.signal != 0;
  exit.error_message = ending.error;
  exit.traceback = ending.error.empty() ? "" : "at step 12";
  exit.error_json = ending.error.empty() ? "" : "{}";
  exit.stderr_tail = {"step 12", "the end"};
  exit.log_path = "/logs/stderr.log";
  exit.exited_unix_ns = now_;
  At(now_ + ending.notice_delay,
     [this, index, process_index, exit] { Reap(index, process_index, exit); });
}

void World::Reap(uint32_t index, size_t process_index, const WorkerExit& exit) {
  Agent& agent = *agents_[index];
  Process& process = agent.processes[process_index];
  const Generation g = process.generation;
  process.reaped = true;
  if (agent.keeper_alive) {
    TellAgent(index, g, node::WorkerReaped{g, exit});
  }
  if (!AnyLeftOf(index, g)) {
    At(now_ + kMilli, [this, index, g] { TellAgent(index, g, node::AllWorkersGone{g}); });
  }
}

/// What a dead agent has left: nobody is told how it ends.
void World::EndOrphans(uint32_t index) {
  for (Process& process : agents_[index]->processes) {
    if (process.alive && process.unkillable_until > now_) {
      process.kill_pending = true;
    } else if (process.alive) {
      process.alive = false;
      referee_.ProcessEnded(now_, process.pid, agents_[index]->slot);
    }
  }
}

bool World::AnyAlive(uint32_t index) const {
  const std::vector<Process>& processes = agents_[index]->processes;
  return std::any_of(processes.begin(), processes.end(), [](const Process& p) { return p.alive; });
}

bool World::AnyLeftOf(uint32_t index, Generation g) const {
  const std::vector<Process>& processes = agents_[index]->processes;
  return std::any_of(processes.begin(), processes.end(),
                     [g](const Process& p) { return !p.reaped && p.generation == g; });
}

}  // namespace fsdprun::sim
