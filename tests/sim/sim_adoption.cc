// An agent is killed, its keeper and the workers are not: another agent goes on in its place. See
// Note [Adopting workers] in agent/node/node_record.h.
#include <memory>
#include <utility>
#include <variant>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

void World::AtInLife(Nanos at, uint32_t index, std::function<void()> action) {
  At(at, [this, index, life = agents_[index]->lives_before, action = std::move(action)] {
    if (agents_[index]->lives_before == life) {
      action();
    }
  });
}

/// What its stream carries is lost with it. Not one that was told to end.
void World::ReplaceAgent(uint32_t index, Nanos until) {
  Agent& agent = *agents_[index];
  if (!agent.keeper_alive || agent.is_leaving || agent.paused_until > now_) {
    return;
  }
  if (!agent.record) {
    Violate("an agent with a keeper has left no record");
    return;
  }
  referee_.ledger().Add(FaultOn(FaultKind::kReplaceAgent, agent.slot, until));
  referee_.Paused(now_, agent.slot, until);
  if (agent.stream != 0) {
    Stream& stream = streams_[agent.stream - 1];
    up_messages_.Clear(stream.up.queue);
    down_messages_.Clear(stream.down.queue);
    referee_.StreamReset(FaultOn(FaultKind::kResetStream, agent.slot, now_));
    CloseByAgent(index);
  }
  ++agent.lives_before;
  agent.paused_until = until;
  At(until, [this, index] { ResumeAgent(index); });
}

/// Whose keeper has died meanwhile is not started again in its place.
void World::ResumeAgent(uint32_t index) {
  Agent& agent = *agents_[index];
  if (!agent.alive) {
    return;
  }
  if (!agent.keeper_alive) {
    AgentDies(index, true);
    RestartLater(agent.slot, 100 * kMilli, 8 * kSecond);
    return;
  }
  ++agent.lives_before;  // What was put off is the last one's.
  std::destroy_at(&agent.machine);
  std::construct_at(&agent.machine, agent.spec);
  StepAgent(index, node::Resume{*agent.record});
  AtInLife(now_ + kMilli, index, [this, index] { RepeatToNext(index); });
}

void World::RepeatToNext(uint32_t index) {
  const std::vector<KeeperWord> told = agents_[index]->told;
  for (const KeeperWord& word : told) {
    node::Event event = word.event;
    if (auto* reaped = std::get_if<node::WorkerReaped>(&event)) {
      reaped->age += Duration(now_ - word.at);
    }
    StepAgent(index, event);
  }
}

/// By its keeper, which repeats it to another one.
void World::TellAgent(uint32_t index, Generation g, const node::Event& event) {
  Agent& agent = *agents_[index];
  if (g == agent.ordered) {
    if (std::holds_alternative<node::AllWorkersGone>(event)) {
      std::erase_if(agent.told, [](const KeeperWord& word) {
        return std::holds_alternative<node::AllWorkersGone>(word.event);
      });
    }
    agent.told.push_back({now_, event});
  }
  StepAgent(index, event);
}

}  // namespace fsdprun::sim
