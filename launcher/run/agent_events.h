#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "agent/local/timer_table.h"
#include "agent/node/node_machine.h"
#include "base/mono_time.h"
#include "launcher/report/torch_events.h"

namespace fsdprun {

/// Follows what an agent does and writes a line for each change of its state and its workers'
/// (--event-log-handler=console). Beyond torchrun, workers of worlds that were restarted are told,
/// too, and each when it has ended. Thread: loop thread only.
class AgentEvents {
 public:
  using WriteLine = std::function<void(const std::string& line)>;

  AgentEvents(EventContext context, WriteLine write)
      : context_(std::move(context)), write_(std::move(write)) {}

  /// An event that the agent's machine is about to take, an action that it has decided on.
  void On(const node::Event& event);
  void On(const node::Action& action);
  void OnTimer(const ExpiredTimer& timer);
  /// The agent has ended. `error`: why it could not do its work; empty if the workers have ended by
  /// themselves, however.
  void OnEnd(const std::string& error);

 private:
  void Write(StateEvent event);
  void OnPrepare(const RankAssignment& assignment);
  void OnAssigned(const RankAssignment& assignment);
  void OnSpawned(const node::WorkersSpawned& spawned);
  void OnReaped(const node::WorkerReaped& reaped);
  EventWorker PlaceOf(int local_rank, int64_t pid) const;

  EventContext context_;
  const WriteLine write_;
  const MonoTime began_at_ = MonoNow();
  MonoTime rendezvous_since_ = began_at_;
  MonoTime prepared_at_{};
  RankAssignment assignment_;
  /// The signal of the last stop order for this world, and since when; 0: none.
  int stop_signal_ = 0;
  MonoTime stopped_at_ = MonoTime::max();
};

}  // namespace fsdprun
