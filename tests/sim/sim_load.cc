// A loaded machine: everything is late, and nothing is lost.

#include <algorithm>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

/// How long whatever has waited for its turn then runs.
constexpr Nanos kLongestTurn = 100 * kMilli;

}  // namespace

bool World::IsLoaded() const { return now_ < InMix(options_.mix.loaded_for_s); }

/// The agent runs for moments, and in between not at all.
void World::StarveAgent(uint32_t index) {
  Agent& agent = *agents_[index];
  if (!agent.alive || !IsLoaded()) {
    return;
  }
  const Nanos until = now_ + random_.Between(0, InMix(options_.mix.late_s));
  referee_.ledger().Add(FaultOn(FaultKind::kPauseAgent, agent.slot, until));
  referee_.Paused(now_, agent.slot, until);
  agent.paused_until = std::max(agent.paused_until, until);
  At(until, [this, index] {
    if (agents_[index]->stream != 0) {
      Unstall(agents_[index]->stream - 1);
    }
  });
  At(until + random_.Between(0, kLongestTurn), [this, index] { StarveAgent(index); });
}

/// The same of the coordinator. Connections that are made meanwhile stand, and wait.
void World::StarveCoordinator() {
  if (!IsLoaded()) {
    return;
  }
  const Nanos until = now_ + random_.Between(0, InMix(options_.mix.late_s));
  referee_.ledger().Add(FaultOn(FaultKind::kPauseCoordinator, kCoordinatorNode, until));
  referee_.CoordinatorPaused(now_, until);
  coordinator_paused_until_ = std::max(coordinator_paused_until_, until);
  At(until, [this] { UnstallAll(); });
  At(until + random_.Between(0, kLongestTurn), [this] { StarveCoordinator(); });
}

}  // namespace fsdprun::sim
