#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "agent/node/node_machine.h"
#include "base/mono_time.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// One worker of the latest generation that was started on this node.
struct WorkerTally {
  int rank = 0;
  int64_t pid = 0;
  /// How it has ended; empty while it runs.
  enum class End { kWell, kBadly, kStopped };
  std::optional<End> end{};
  /// The latest step that it has told, and when; -1: none.
  int64_t step = -1;
  MonoTime step_at{};
};

/// Counts what happens on a node, since its launcher began. Pure.
class NodeTally {
 public:
  void On(const node::News& news);
  void On(const node::Event& event, MonoTime now);

  /// By local rank.
  const std::map<int, WorkerTally>& workers() const { return workers_; }
  uint64_t starts() const { return starts_; }
  /// By WorkerTally::End.
  uint64_t ends(WorkerTally::End how) const { return ends_[static_cast<size_t>(how)]; }
  uint64_t coordinator_losses() const { return coordinator_losses_; }
  uint64_t keeper_deaths() const { return keeper_deaths_; }

 private:
  void Tell(const node::WorkersStarted& started);
  void Tell(const node::WorkerEnded& ended);
  void Tell(const node::CoordinatorLost& lost);
  void Tell(const node::KeeperDied& died);
  template <class Other>
  void Tell(const Other& /*what*/) {}

  Generation generation_;
  std::map<int, WorkerTally> workers_;
  uint64_t starts_ = 0;
  uint64_t ends_[3] = {};
  uint64_t coordinator_losses_ = 0;
  uint64_t keeper_deaths_ = 0;
};

}  // namespace fsdprun
