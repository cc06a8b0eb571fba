#include <cmath>
#include <csignal>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

void World::ScheduleFault() {
  // Exponential gaps: faults come in clusters, too.
  const double u = (static_cast<double>(random_.Below(1'000'000)) + 1) / 1'000'001;
  const Nanos gap = static_cast<Nanos>(-std::log(u) * options_.mix.mean_gap_s * kSecond);
  At(now_ + gap, [this] {
    if (healed_ || job_->outcome()) {
      return;
    }
    InjectFault();
    ScheduleFault();
  });
}

FaultKind World::PickFault() {
  double total = 0;
  for (const auto& [kind, weight] : options_.mix.weights) {
    total += weight;
  }
  double at = static_cast<double>(random_.Below(1'000'000)) / 1'000'000 * total;
  for (const auto& [kind, weight] : options_.mix.weights) {
    if (at < weight) {
      return kind;
    }
    at -= weight;
  }
  return options_.mix.weights.rbegin()->first;
}

std::optional<uint32_t> World::PickAgent() {
  for (int attempt = 0; attempt < 16; ++attempt) {
    const Slot& slot = slots_[random_.Below(slots_.size())];
    if (slot.agent && agents_[*slot.agent]->alive) {
      return slot.agent;
    }
  }
  return std::nullopt;
}

void World::InjectFault() {
  const FaultKind kind = PickFault();
  const std::optional<uint32_t> picked = PickAgent();
  if (!picked) {
    return;
  }
  ++result_.faults;
  Log("fault " + std::to_string(static_cast<int>(kind)) + " on " +
      slots_[agents_[*picked]->slot].name);
  Inflict(kind, *picked);
}

void World::Inflict(FaultKind kind, uint32_t index) {
  Agent& agent = *agents_[index];
  const int slot = agent.slot;
  switch (kind) {
    case FaultKind::kKillWorker:
      KillWorker(index);
      return;
    case FaultKind::kHangOnTerm:
      for (Process& process : agent.processes) {
        process.ignores_term = true;
      }
      return;
    case FaultKind::kKillAgent:
    case FaultKind::kPowerOff:
      AgentDies(index, kind == FaultKind::kKillAgent);
      RestartLater(slot, 100 * kMilli, 8 * kSecond);
      return;
    case FaultKind::kKillKeeper:
      KillKeeper(index);
      return;
    case FaultKind::kPartition:
      PartitionSome(true, true);
      return;
    case FaultKind::kOneWayPartition: {
      const bool up = random_.Chance(0.5);
      PartitionSome(up, !up);
      return;
    }
    case FaultKind::kClog:
      slots_[slot].clogged_until = now_ + random_.Between(kSecond, 10 * kSecond);
      return;
    case FaultKind::kResetStream:
      BreakStream(index);
      return;
    case FaultKind::kPauseAgent:
      PauseUntil(agent.paused_until, now_ + random_.Between(100 * kMilli, 10 * kSecond));
      return;
    case FaultKind::kPauseCoordinator:
      PauseUntil(coordinator_paused_until_, now_ + random_.Between(100 * kMilli, 8 * kSecond));
      return;
    case FaultKind::kMassLeave:
      LeaveInNumbers();
      return;
    case FaultKind::kDuplicateAgent:
      DuplicateAgent(slot);
      return;
    case FaultKind::kFailPrepare:
      agent.fail_next_prepare = true;
      return;
    case FaultKind::kOperatorStop:
      StopJob();
      return;
  }
}

void World::KillKeeper(uint32_t index) {
  if (agents_[index]->keeper_alive) {
    agents_[index]->keeper_alive = false;
    StepAgent(index, node::KeeperLost{"killed by signal 9"});
  }
}

/// SIGSTOP now, SIGCONT then; what has arrived meanwhile is read at once.
void World::PauseUntil(Nanos& paused_until, Nanos then) {
  paused_until = then;
  At(then, [this] { UnstallAll(); });
}

/// Ctrl-C, and once more by an operator without patience.
void World::StopJob() {
  SignalCoordinator();
  if (random_.Chance(0.5)) {
    At(now_ + random_.Between(0, 5 * kSecond), [this] { SignalCoordinator(); });
  }
}

/// A stopped coordinator hears of it when it goes on.
void World::SignalCoordinator() {
  if (coordinator_paused_until_ > now_) {
    At(coordinator_paused_until_, [this] { SignalCoordinator(); });
    return;
  }
  stop_heard_ |= !job_->outcome().has_value();
  StepJob(job::OperatorStop{SIGINT});
}

void World::LeaveInNumbers() {
  for (int i = 0; i < 1 + options_.nodes / 8; ++i) {
    if (const std::optional<uint32_t> leaver = PickAgent()) {
      StepAgent(*leaver, node::OperatorSignal{SIGTERM});
    }
  }
}

/// A second agent for a node that is alive; an operator notices after a while and stops it.
void World::DuplicateAgent(int slot) {
  Slot extra;
  extra.name = slots_[slot].name;
  extra.node_rank = slots_[slot].node_rank;
  extra.is_extra = true;
  slots_.push_back(std::move(extra));
  const uint32_t duplicate = StartAgent(static_cast<int>(slots_.size()) - 1);
  At(now_ + random_.Between(kSecond, 20 * kSecond),
     [this, duplicate] { StepAgent(duplicate, node::OperatorSignal{SIGINT}); });
}

/// One worker dies; some of its peers fail soon after, of the lost connection, and their notice may
/// be the faster one.
void World::KillWorker(uint32_t index) {
  Agent& agent = *agents_[index];
  for (size_t i = 0; i < agent.processes.size(); ++i) {
    const Process& process = agent.processes[i];
    if (!process.alive || process.dying) {
      continue;
    }
    const bool by_signal = random_.Chance(0.5);
    EndProcess(index, i, by_signal ? 0 : 1, by_signal ? SIGKILL : 0,
               by_signal ? random_.Between(0, 300 * kMilli) : 0);
    if (const std::optional<uint32_t> peer = PickAgent(); peer && random_.Chance(0.5)) {
      At(now_ + random_.Between(kMilli, 50 * kMilli), [this, p = *peer, g = process.generation] {
        for (size_t j = 0; j < agents_[p]->processes.size(); ++j) {
          if (agents_[p]->processes[j].generation == g) {
            EndProcess(p, j, 1, 0, 0);
          }
        }
      });
    }
    return;
  }
}

void World::PartitionSome(bool up, bool down) {
  const Nanos duration = random_.Between(200 * kMilli, 12 * kSecond);
  const size_t count = random_.Chance(0.3) ? slots_.size() / 2 : 1;
  const size_t first = random_.Below(slots_.size());
  for (size_t i = 0; i < count; ++i) {
    CutSlot(static_cast<int>((first + i) % slots_.size()), up, down, duration);
  }
}

}  // namespace fsdprun::sim
