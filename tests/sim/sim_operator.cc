// What an operator asks of the running job with fsdpctl.

#include <algorithm>
#include <functional>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

/// A coordinator that is stopped hears of it when it goes on; where there is none, nobody does.
void World::AskCoordinator(const std::function<void()>& question) {
  if (coordinator_paused_until_ > now_) {
    At(coordinator_paused_until_, [this, question] { AskCoordinator(question); });
  } else if (!coordinator_is_down_ && !coordinator_died_) {
    question();
  }
}

void World::AskForRestart() {
  AskCoordinator([this] {
    referee_.OperatorOrders(now_);
    StepJob(job::RestartAsked{});
  });
}

/// Whoever has started the agent does so again a little later, as after any other end.
void World::DrainNode(uint32_t index) {
  AskCoordinator([this, index] {
    const Agent& agent = *agents_[index];
    const job::Node* node = job_->nodes().Find(agent.incarnation);
    if (node == nullptr || node->leaving || !job_->WhyFixed().empty()) {
      return;
    }
    Log(slots_[agent.slot].name + " is drained");
    const bool is_present = agent.alive && slots_[agent.slot].agent == index;
    referee_.DrainOrdered(now_, agent.slot, agent.incarnation, is_present);
    StepJob(job::DrainAsked{agent.incarnation});
  });
}

/// To any numbers that the nodes suffice for, or to those of the command line again.
void World::ScaleJob() {
  const int most = options_.nodes + options_.mix.spares;
  job::NodeLimits limits{Spec().min_nodes, Spec().max_nodes};
  if (random_.Chance(0.7)) {
    limits.max_nodes = static_cast<int>(random_.Between(1, most));
    limits.min_nodes = static_cast<int>(random_.Between(1, limits.max_nodes));
  }
  AskCoordinator([this, limits] {
    const bool is_news =
        limits.min_nodes != job_->min_nodes() || limits.max_nodes != job_->max_nodes();
    if (!is_news || job_->has_binding_ranks() || !job_->WhyFixed().empty()) {
      return;
    }
    Log("scaled to " + std::to_string(limits.min_nodes) + ":" + std::to_string(limits.max_nodes));
    referee_.Scaled(now_, limits.min_nodes, limits.max_nodes);
    StepJob(job::ScaleAsked{limits.min_nodes, limits.max_nodes});
    CheckSizeIsHeeded(limits.max_nodes);
  });
}

/// Workers that have begun to end well are left alone.
void World::CheckSizeIsHeeded(int max_nodes) {
  const bool goes_on = job_->phase() == job::Phase::kPreparing ||
                       (job_->phase() == job::Phase::kRunning && !job_->world().HasAnySucceeded());
  if (goes_on && static_cast<int>(job_->world().members().size()) > max_nodes) {
    Violate("a world goes on that has more than the " + std::to_string(max_nodes) +
            " nodes that an operator allows");
  }
}

/// Long after the last order.
void World::CheckDrainedAreGone() {
  if (job_->outcome() || coordinator_died_ || coordinator_is_down_) {
    return;
  }
  for (const std::unique_ptr<Agent>& agent : agents_) {
    if (agent->alive) {
      referee_.operators().IsThere(agent->incarnation);
    }
  }
}

}  // namespace fsdprun::sim
