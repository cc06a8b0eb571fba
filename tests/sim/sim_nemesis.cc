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

std::optional<uint32_t> World::PickVictim() {
  if (options_.mix.lemon > 0 && random_.Chance(options_.mix.lemon)) {
    const std::optional<uint32_t> lemon = slots_[static_cast<size_t>(options_.nodes) - 1].agent;
    return lemon && agents_[*lemon]->alive ? lemon : std::nullopt;
  }
  return PickAgent();
}

void World::InjectFault() {
  const FaultKind kind = PickFault();
  const std::optional<uint32_t> picked = PickVictim();
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
  switch (kind) {
    case FaultKind::kKillWorker:
    case FaultKind::kConfigExit:
      KillWorker(kind, index);
      return;
    case FaultKind::kHangOnTerm:
      for (Process& process : agent.processes) {
        process.ignores_term = true;
      }
      return;
    case FaultKind::kUnkillableWorker:
      MakeUnkillable(index);
      return;
    case FaultKind::kHangWorker:
      HangWorker(index);
      return;
    case FaultKind::kKillAgent:
    case FaultKind::kPowerOff:
    case FaultKind::kScrapNode:
      KillAgent(kind, index);
      return;
    case FaultKind::kKillKeeper:
      KillKeeper(index);
      return;
    case FaultKind::kFailPrepare:
      agent.armed.fail_prepare = true;
      return;
    case FaultKind::kHangPrepare:
      agent.armed.hang_prepare = true;
      return;
    case FaultKind::kFailSpawn:
      agent.armed.fail_spawn = true;
      return;
    case FaultKind::kPauseCoordinator:
      PauseCoordinator(now_ + random_.Between(100 * kMilli, 8 * kSecond));
      return;
    case FaultKind::kOperatorStop:
      StopJob();
      return;
    case FaultKind::kSignalNodes:
      SignalNodes();
      return;
    case FaultKind::kAskForRestart:
      AskForRestart();
      return;
    case FaultKind::kDrainNode:
      DrainNode(index);
      return;
    case FaultKind::kScaleJob:
      ScaleJob();
      return;
    case FaultKind::kTakePlace:
      TakePlace();
      return;
    case FaultKind::kKillCoordinator:
      KillCoordinator();
      return;
    case FaultKind::kRestartCoordinator:
      RestartCoordinator();
      return;
    default:
      Disturb(kind, index);
      return;
  }
}

/// What happens to nodes and links rather than to workers.
void World::Disturb(FaultKind kind, uint32_t index) {
  const int slot = agents_[index]->slot;
  switch (kind) {
    case FaultKind::kNoKeeper:
      slots_[slot].no_keeper_until = now_ + random_.Between(200 * kMilli, 6 * kSecond);
      referee_.ledger().Add(FaultOn(kind, slot, slots_[slot].no_keeper_until));
      KillKeeper(index);
      return;
    case FaultKind::kPartition:
      PartitionSome(kind, true, true);
      return;
    case FaultKind::kOneWayPartition: {
      const bool up = random_.Chance(0.5);
      PartitionSome(kind, up, !up);
      return;
    }
    case FaultKind::kClog:
      Clog(slot);
      return;
    case FaultKind::kResetStream:
      BreakStream(index);
      return;
    case FaultKind::kPauseAgent:
      PauseAgent(index, now_ + random_.Between(100 * kMilli, 10 * kSecond));
      return;
    case FaultKind::kReplaceAgent:  // Mostly in time, as far as its lease is concerned.
      ReplaceAgent(index, now_ + random_.Between(50 * kMilli,
                                                 random_.Chance(0.8) ? 2 * kSecond : 8 * kSecond));
      return;
    case FaultKind::kMassLeave:
      LeaveInNumbers();
      return;
    case FaultKind::kDuplicateAgent:
      DuplicateAgent(slot);
      return;
    default:
      Violate("a fault that nobody injects");
      return;
  }
}

InjectedFault World::FaultOn(FaultKind kind, int slot, Nanos until) const {
  InjectedFault fault;
  fault.kind = kind;
  fault.at = now_;
  fault.until = until;
  fault.node = slot;
  fault.node_name = slot == kCoordinatorNode ? "the coordinator" : slots_[slot].name;
  return fault;
}

/// SIGSTOP now, SIGCONT then; what has arrived meanwhile is read at once.
void World::PauseAgent(uint32_t index, Nanos until) {
  Agent& agent = *agents_[index];
  referee_.ledger().Add(FaultOn(FaultKind::kPauseAgent, agent.slot, until));
  referee_.Paused(now_, agent.slot, until);
  agent.paused_until = std::max(agent.paused_until, until);
  At(agent.paused_until, [this] { UnstallAll(); });
}

/// The same.
void World::PauseCoordinator(Nanos until) {
  referee_.ledger().Add(FaultOn(FaultKind::kPauseCoordinator, kCoordinatorNode, until));
  referee_.CoordinatorPaused(now_, until);
  coordinator_paused_until_ = std::max(coordinator_paused_until_, until);
  At(coordinator_paused_until_, [this] { UnstallAll(); });
}

/// What says who hosts the job is out of reach of its host for a while; most often so long that
/// another launcher takes the place. Some hosts notice that unasked.
void World::TakePlace() {
  constexpr Nanos kLongestWait = 3 * kSecond;
  constexpr Nanos kLongestOutage = 6 * kSecond;
  if (place_will_be_taken_ || place_out_of_reach_until_ > now_) {
    return;
  }
  Nanos from = now_;
  if (random_.Chance(0.7)) {
    place_will_be_taken_ = true;
    from = std::max(now_, place_held_until_ + 1) + random_.Between(0, kLongestWait);
    At(from, [this] {
      place_is_taken_ = true;
      referee_.PlaceTaken(now_);
    });
  }
  place_out_of_reach_until_ = from + random_.Between(1, kLongestOutage);
  referee_.PlaceOutOfReach(now_, place_out_of_reach_until_);
  if (place_will_be_taken_ && random_.Chance(0.5)) {
    At(place_out_of_reach_until_ + random_.Between(0, kLongestWait),
       [this] { TellOfTakenPlace(); });
  }
}

/// The launcher's process dies: the coordinator, and the agent of its node. Nobody starts them
/// again: the coordinator's memory is the job.
void World::KillCoordinator() {
  referee_.ledger().Add(FaultOn(FaultKind::kKillCoordinator, kCoordinatorNode, kForever));
  referee_.CoordinatorDied(now_);
  coordinator_died_ = true;
  if (slots_[0].agent) {
    AgentDies(*slots_[0].agent, true);
  }
  for (uint32_t i = 0; i < agents_.size(); ++i) {
    const Slot& slot = slots_[agents_[i]->slot];
    const bool is_cut = slot.up_cut_until > now_ || slot.down_cut_until > now_;
    At(now_ + (is_cut ? kSilence : Delay(slot)), [this, i] { LoseStream(i, "end of stream"); });
  }
}

void World::Clog(int slot_index) {
  // The last message that is delayed arrives this long after the link is well again.
  constexpr Nanos kLastDelay = kSecond;
  Slot& slot = slots_[slot_index];
  slot.clogged_until = now_ + random_.Between(kSecond, 10 * kSecond);
  referee_.ledger().Add(FaultOn(FaultKind::kClog, slot_index, slot.clogged_until + kLastDelay));
  referee_.SlowedDown(now_, slot_index, slot.clogged_until + kLastDelay);
}

/// Ctrl-C, and once more by an impatient operator.
void World::StopJob() {
  SignalCoordinator(SIGINT);
  if (random_.Chance(0.5)) {
    At(now_ + random_.Between(0, 5 * kSecond), [this] { SignalCoordinator(SIGINT); });
  }
}

/// A stopped coordinator hears of it when it goes on.
void World::SignalCoordinator(int signal) {
  if (coordinator_paused_until_ > now_) {
    At(coordinator_paused_until_, [this, signal] { SignalCoordinator(signal); });
    return;
  }
  if (coordinator_is_down_) {
    return;  // There is no process to signal.
  }
  Log("signal " + std::to_string(signal) + " to the coordinator");
  if (!job_->outcome() && !coordinator_died_) {
    stop_heard_ = true;
    referee_.StopHeard();
  }
  StepJob(job::OperatorStop{signal});
}

/// An agent that leaves while it reconnects may be gone before it can say so.
void World::NoteLeaving(uint32_t index) {
  Agent& agent = *agents_[index];
  agent.is_leaving = true;
  referee_.AgentLeaves(now_, agent.slot);
  if (agent.stream == 0 || coordinator_is_down_) {
    referee_.ledger().Add(FaultOn(FaultKind::kResetStream, agent.slot, now_));
  }
}

void World::LeaveInNumbers() {
  for (int i = 0; i < 1 + options_.nodes / 8; ++i) {
    if (const std::optional<uint32_t> leaver = PickAgent()) {
      NoteLeaving(*leaver);
      StepAgent(*leaver, node::OperatorSignal{SIGTERM});
    }
  }
}

/// A second agent for a node that is alive; an operator notices after a while and stops it.
void World::DuplicateAgent(int slot) {
  Slot extra;
  extra.name = slots_[slot].name;
  extra.node_rank = slots_[slot].node_rank;
  extra.preferred_rank = slots_[slot].preferred_rank;
  extra.is_extra = true;
  slots_.push_back(std::move(extra));
  const uint32_t duplicate = StartAgent(static_cast<int>(slots_.size()) - 1);
  At(now_ + random_.Between(kSecond, 20 * kSecond), [this, duplicate] {
    NoteLeaving(duplicate);
    StepAgent(duplicate, node::OperatorSignal{SIGINT});
  });
}

void World::PartitionSome(FaultKind kind, bool up, bool down) {
  const Nanos until = now_ + random_.Between(200 * kMilli, 12 * kSecond);
  const size_t count = random_.Chance(0.3) ? slots_.size() / 2 : 1;
  const size_t first = random_.Below(slots_.size());
  for (size_t i = 0; i < count; ++i) {
    const int slot = static_cast<int>((first + i) % slots_.size());
    referee_.ledger().Add(FaultOn(kind, slot, until));
    CutSlot(slot, up, down, until);
  }
}

}  // namespace fsdprun::sim
