#pragma once

#include <optional>
#include <vector>

#include "base/mono_time.h"

namespace fsdprun {

/// What a machine that has none of them gives as its records or news.
struct None {};

/// What one step of a state machine asks for; MachineDriver has it carried out.
template <class RecordType, class MessageType, class ActionType, class NewsType>
struct Effects {
  using Record = RecordType;
  using Message = MessageType;
  using Action = ActionType;
  using News = NewsType;

  /// To be kept before anything else is carried out; empty if nothing of it has changed.
  std::optional<Record> persist;
  /// For the other machines, in order. Those to whoever has no stream are dropped by the executor.
  std::vector<Message> messages;
  /// What this machine's own side is to do, in order.
  std::vector<Action> actions;
  /// What has happened, for those who only watch.
  std::vector<News> news;
  /// Deliver TimerDue at this time (replaces the earlier request). MonoTime::max() means never.
  MonoTime wake_at = MonoTime::max();

  /// Keeps the buffers: a heartbeat allocates nothing.
  void Clear() {
    persist.reset();
    messages.clear();
    actions.clear();
    news.clear();
    wake_at = MonoTime::max();
  }
};

}  // namespace fsdprun
