#include "launcher/metrics/node_tally.h"

#include <variant>

namespace fsdprun {

void NodeTally::On(const node::News& news) {
  std::visit([this](const auto& what) { Tell(what); }, news);
}

void NodeTally::On(const node::Event& event, MonoTime now) {
  const auto* told = std::get_if<node::WorkerProgress>(&event);
  if (told == nullptr || told->generation != generation_) {
    return;
  }
  const auto worker = workers_.find(told->local_rank);
  if (worker != workers_.end() && told->progress.step >= 0 &&
      told->progress.step != worker->second.step) {
    worker->second.step = told->progress.step;
    worker->second.step_at = now;
  }
}

void NodeTally::Tell(const node::WorkersStarted& started) {
  generation_ = started.generation;
  workers_.clear();
  starts_ += started.pids.size();
  for (int i = 0; i < static_cast<int>(started.pids.size()); ++i) {
    workers_[i] = {.rank = started.rank + i, .pid = started.pids[static_cast<size_t>(i)]};
  }
}

void NodeTally::Tell(const node::WorkerEnded& ended) {
  using End = WorkerTally::End;
  const WorkerExit& exit = ended.exit;
  const End end = exit.after_stop ? End::kStopped : exit.Succeeded() ? End::kWell : End::kBadly;
  ++ends_[static_cast<size_t>(end)];
  const auto worker = workers_.find(exit.local_rank);
  if (ended.generation == generation_ && worker != workers_.end()) {
    worker->second.end = end;
  }
}

void NodeTally::Tell(const node::CoordinatorLost& /*lost*/) { ++coordinator_losses_; }
void NodeTally::Tell(const node::KeeperDied& /*died*/) { ++keeper_deaths_; }

}  // namespace fsdprun
