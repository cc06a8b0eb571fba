#include <algorithm>
#include <utility>

#include "tests/sim/sim_world.h"
#include "tests/sim/wire.h"

namespace fsdprun::sim {

namespace {

constexpr Nanos kConnectTimeout = 200 * kMilli;

node::StreamLost FailedAttempt(bool refused) {
  return {refused ? "connection refused" : "connect timed out", refused};
}

}  // namespace

Nanos World::Delay(const Slot& slot) {
  const Nanos max = static_cast<Nanos>(options_.mix.max_delay_ms * kMilli);
  const Nanos delay = random_.Between(50 * kMicro, std::max(max, 51 * kMicro));
  return slot.clogged_until > now_ ? delay + random_.Between(0, 800 * kMilli) : delay;
}

bool World::IsUnheard(const Slot& slot) const {
  // A stopped process that is killed ends at once.
  const bool is_paused = coordinator_paused_until_ > now_ && !coordinator_died_;
  return slot.up_cut_until > now_ || slot.down_cut_until > now_ || is_paused;
}

/// A coordinator on a loaded machine takes the connection when it comes to it, at most at `until`.
void World::Connect(uint32_t index, Nanos until) {
  Agent& agent = *agents_[index];
  if (!agent.alive) {
    return;
  }
  const Slot& slot = slots_[agent.slot];
  if (IsLoaded() && coordinator_paused_until_ > now_ && coordinator_paused_until_ < until) {
    AtInLife(coordinator_paused_until_, index, [this, index, until] { Connect(index, until); });
    return;
  }
  const bool is_unheard = IsUnheard(slot);
  if (is_unheard || coordinator_died_ || coordinator_is_down_) {
    AtInLife(now_ + (is_unheard ? kConnectTimeout : kMilli), index, [this, index, is_unheard] {
      StepAgent(index, FailedAttempt(/*refused=*/!is_unheard));
    });
    return;
  }
  AtInLife(now_ + Delay(slot) + Delay(slot), index, [this, index] { OpenStream(index); });
}

void World::OpenStream(uint32_t index) {
  if (!agents_[index]->alive) {
    return;
  }
  // A link that was cut during the handshake carries no end of it.
  const bool is_gone = coordinator_died_ || coordinator_is_down_;
  if (is_gone || IsUnheard(slots_[agents_[index]->slot])) {
    StepAgent(index, FailedAttempt(is_gone));
    return;
  }
  Stream stream;
  stream.agent = index;
  streams_.push_back(stream);
  agents_[index]->stream = static_cast<uint32_t>(streams_.size());
  referee_.StreamOpened(now_, agents_[index]->slot);
  StepAgent(index, node::StreamUp{});
}

/// From here on the message is what its receiver decodes.
template <class Message>
void World::PassWire(Message& message) {
  if (options_.wire_every == 0 || ++messages_sent_ % options_.wire_every != 0) {
    return;
  }
  absl::StatusOr<Message> received = OverTheWire(message);
  if (!received.ok()) {
    Violate(std::string(received.status().message()));
    return;
  }
  message = *std::move(received);
}

/// Takes the message away.
void World::SendUp(uint32_t stream_index, FromAgent& message) {
  Stream& stream = streams_[stream_index];
  const Slot& slot = slots_[agents_[stream.agent]->slot];
  PassWire(message);
  if (!std::holds_alternative<AgentHeartbeat>(message.message)) {
    MaybeReset(stream_index);
  }
  up_messages_.Append(stream.up.queue, std::move(message));
  stream.up.last_delivery = std::max(stream.up.last_delivery, now_ + Delay(slot));
  queue_.Push(stream.up.last_delivery, ItemKind::kDeliverUp, stream_index);
}

/// Resets hit where it hurts: while something is in flight.
void World::MaybeReset(uint32_t stream_index) {
  if (healed_ || !random_.Chance(options_.mix.reset_per_message)) {
    return;
  }
  At(now_ + random_.Between(0, kMilli), [this, stream_index] {
    const uint32_t agent = streams_[stream_index].agent;
    if (agents_[agent]->alive && agents_[agent]->stream == stream_index + 1) {
      BreakStream(agent);
    }
  });
}

/// A message that arrives does so once more, later than those that follow it; never before one that
/// was sent earlier. Introductions are not duplicated: a stream begins with one.
void World::MaybeDuplicate(uint32_t stream_index, const FromAgent& message) {
  if (healed_ || std::holds_alternative<AgentJoined>(message.message) ||
      !random_.Chance(options_.mix.duplicate)) {
    return;
  }
  At(now_ + random_.Between(0, 2 * kSecond), [this, stream_index, message] {
    if (coordinator_paused_until_ <= now_ && streams_[stream_index].server_open) {
      StepJobWithReport(message);
    }
  });
}

void World::DeliverUp(uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  if (slots_[agents_[stream.agent]->slot].up_cut_until > now_ || coordinator_paused_until_ > now_) {
    stream.up.stalled = true;
    return;
  }
  if (stream.up.queue.empty()) {
    EndUp(stream_index);
    return;
  }
  const auto cell = up_messages_.TakeFirst(stream.up.queue);
  if (stream.server_open) {
    const job::Event& event = up_messages_[cell];
    const FromAgent& message = std::get<FromAgent>(event);
    if (std::holds_alternative<AgentJoined>(message.message)) {
      ReplaceStream(message.incarnation, stream_index);
    }
    result_.heartbeats += std::holds_alternative<AgentHeartbeat>(message.message) ? 1 : 0;
    if (options_.mix.duplicate > 0) {
      MaybeDuplicate(stream_index, message);
    }
    StepJobWithReport(event);
  }
  up_messages_.Release(cell);
}

/// The coordinator listens to an agent's newest stream only.
void World::ReplaceStream(Incarnation incarnation, uint32_t stream_index) {
  const auto [current, is_first] = current_stream_.emplace(incarnation.value(), stream_index);
  if (!is_first && current->second != stream_index) {
    streams_[current->second].server_open = false;
    current->second = stream_index;
  }
}

/// Everything has arrived: the coordinator sees the end of the stream, if there is one.
void World::EndUp(uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  if (!stream.up.close_pending || !stream.server_open) {
    return;
  }
  stream.server_open = false;
  const Incarnation incarnation = agents_[stream.agent]->incarnation;
  const auto current = current_stream_.find(incarnation.value());
  if (current != current_stream_.end() && current->second == stream_index) {
    current_stream_.erase(current);
    referee_.StreamLossHeard(now_, incarnation);
    StepJob(job::AgentStreamLost{incarnation});
  }
}

/// Takes the message away.
void World::SendDown(ToAgent& message) {
  const auto current = current_stream_.find(message.incarnation.value());
  if (current == current_stream_.end()) {
    return;
  }
  Stream& stream = streams_[current->second];
  const Slot& slot = slots_[agents_[stream.agent]->slot];
  PassWire(message);
  MaybeReset(current->second);
  down_messages_.Append(stream.down.queue, std::move(message));
  stream.down.last_delivery = std::max(stream.down.last_delivery, now_ + Delay(slot));
  queue_.Push(stream.down.last_delivery, ItemKind::kDeliverDown, current->second);
}

void World::DeliverDown(uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  Agent& agent = *agents_[stream.agent];
  if (slots_[agent.slot].down_cut_until > now_ || agent.paused_until > now_) {
    stream.down.stalled = true;
    return;
  }
  if (stream.down.queue.empty()) {
    return;
  }
  const auto cell = down_messages_.TakeFirst(stream.down.queue);
  if (stream.agent_open) {
    agent.was_admitted |=
        std::holds_alternative<AdmitAgent>(std::get<ToAgent>(down_messages_[cell]).message);
    StepAgent(stream.agent, down_messages_[cell]);
  }
  down_messages_.Release(cell);
}

/// The agent's side of its stream closes: what it has sent still arrives, then the end of the
/// stream.
void World::CloseByAgent(uint32_t index) {
  Agent& agent = *agents_[index];
  if (agent.stream == 0) {
    return;
  }
  const uint32_t stream_index = agent.stream - 1;
  agent.stream = 0;
  referee_.StreamClosed(now_, agent.slot);
  Stream& stream = streams_[stream_index];
  stream.agent_open = false;
  stream.up.close_pending = true;
  stream.up.last_delivery = std::max(stream.up.last_delivery, now_ + Delay(slots_[agent.slot]));
  queue_.Push(stream.up.last_delivery, ItemKind::kDeliverUp, stream_index);
}

/// A reset: what is in flight is lost in both directions.
void World::BreakStream(uint32_t index) {
  Agent& agent = *agents_[index];
  if (agent.stream == 0) {
    return;
  }
  Stream& stream = streams_[agent.stream - 1];
  up_messages_.Clear(stream.up.queue);
  down_messages_.Clear(stream.down.queue);
  referee_.StreamReset(FaultOn(FaultKind::kResetStream, agent.slot, now_));
  LoseStream(index, "connection reset");
}

void World::LoseStream(uint32_t index, const char* why) {
  if (agents_[index]->alive && agents_[index]->stream != 0) {
    CloseByAgent(index);
    StepAgent(index, node::StreamLost{why});
  }
}

void World::Unstall(uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  if (stream.up.stalled) {
    stream.up.stalled = false;
    const size_t waiting = up_messages_.Length(stream.up.queue) + (stream.up.close_pending ? 1 : 0);
    for (size_t i = 0; i < waiting; ++i) {
      queue_.Push(now_, ItemKind::kDeliverUp, stream_index);
    }
  }
  if (stream.down.stalled) {
    stream.down.stalled = false;
    for (size_t i = down_messages_.Length(stream.down.queue); i > 0; --i) {
      queue_.Push(now_, ItemKind::kDeliverDown, stream_index);
    }
  }
}

void World::UnstallAll() {
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    Unstall(i);
  }
}

void World::CutSlot(int slot_index, bool up, bool down, Nanos until) {
  Slot& slot = slots_[slot_index];
  if (up) {
    slot.up_cut_until = std::max(slot.up_cut_until, until);
  }
  if (down) {
    slot.down_cut_until = std::max(slot.down_cut_until, until);
  }
  referee_.CutOff(now_, slot_index, until);
  At(until, [this] { UnstallAll(); });
}

/// The node has no power any more: nothing ends its stream but the kernel at the other end.
void World::EndOfMachine(uint32_t stream_index) {
  At(now_ + kMachineGone, [this, stream_index] {
    Stream& stream = streams_[stream_index];
    up_messages_.Clear(stream.up.queue);
    stream.up.close_pending = true;
    queue_.Push(now_, ItemKind::kDeliverUp, stream_index);
  });
}

}  // namespace fsdprun::sim
