// What agents report.

#include <csignal>
#include <utility>
#include <variant>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

void JobMachine::Handle(const FromAgent& envelope, Out& out) {
  std::visit([&](const auto& message) { On(message, envelope, out); }, envelope.message);
}

void JobMachine::Handle(const job::AgentStreamLost& lost, Out& out) {
  Node* node = membership_.nodes().Find(lost.incarnation);
  if (node == nullptr || !node->connected) {
    out.changed = false;
    return;
  }
  membership_.LostStream(*node, out.now);
  if (node->state == NodeState::kReleased) {
    ending_.HeardOfNode(out.now);
  }
}

void JobMachine::Handle(const job::AgentDied& died, Out& out) {
  const Node* node = membership_.nodes().Find(died.incarnation);
  if (node == nullptr) {
    out.changed = false;
    return;
  }
  if (node->state == NodeState::kReleased) {
    membership_.Dismiss(died.incarnation);
    MaybeSendFinish(out);
    return;
  }
  LoseNode(died.incarnation, CauseKind::kNodeLost,
           "ended with the launcher that hosted the coordinator", out);
}

void JobMachine::On(const AgentHeartbeat& heartbeat, const FromAgent& envelope, Out& out) {
  out.changed = false;
  Node* node = membership_.nodes().Find(envelope.incarnation);
  if (node == nullptr) {
    ++stale_dropped_;
    out.effects.messages.push_back(
        ToAgent{envelope.incarnation, Generation{},
                RejectAgent{"this agent was declared lost; it may join again", true}});
    return;
  }
  if (membership_.Heard(*node, out.now)) {
    out.changed = true;
    MaybeForm(out);
    MaybeGrow(out);
  }
  if (heartbeat.asks) {
    SendTo(*node, Generation{}, HeartbeatHeard{}, out);
  }
  const bool is_first = node->IsMember() && node->group_rank == 0;
  if (is_first && envelope.generation == generation() && heartbeat.progress.step >= 0) {
    world_.NoteProgress(heartbeat.progress);
  }
}

// --- About the present generation

void JobMachine::On(const AgentPrepared& prepared, const FromAgent& envelope, Out& out) {
  World::Member* member = FindSender(envelope);
  if (member == nullptr) {
    return;
  }
  switch (world_.Prepared(*member, prepared, out.now)) {
    case World::Answered::kNothing:
    case World::Answered::kOne:
      return;
    case World::Answered::kAll:
      MaybeCommit(out);
      return;
    case World::Answered::kNoStore:
      RecordFailure(FailureOf(envelope, CauseKind::kPrepareFailed,
                              "group rank 0 is prepared but names no store endpoint"),
                    out.now, out);
      Abort("no store endpoint", out);
      return;
  }
}

void JobMachine::On(const AgentStarted&, const FromAgent& envelope, Out& out) {
  World::Member* member = FindSender(envelope);
  if (member != nullptr && !IsRecordBehind(*member, out) &&
      world_.Started(*member) == World::Answered::kAll) {
    const int workers = world_.world_size();
    const size_t nodes = world_.members().size();
    SetReason("running generation " + std::to_string(generation().value()) + ": " +
              std::to_string(workers) + (workers == 1 ? " worker on " : " workers on ") +
              std::to_string(nodes) + (nodes == 1 ? " node" : " nodes"));
  }
}

void JobMachine::On(const WorkerExited& exited, const FromAgent& envelope, Out& out) {
  World::Member* member = FindSender(envelope);
  if (member == nullptr || IsRecordBehind(*member, out)) {
    return;
  }
  switch (world_.WorkerEnded(*member, exited.exit)) {
    case World::Ended::kNothing:
    case World::Ended::kWell:
      return;
    case World::Ended::kAllWell:
      Finish(job::Succeeded(world_), out);
      return;
    case World::Ended::kFailed:
      OnFailedWorker(exited, envelope, out);
      return;
  }
}

/// Of a member that tells of its workers; see Note [A record that is behind].
bool JobMachine::IsRecordBehind(const World::Member& member, Out& out) {
  if (phase() != Phase::kPreparing) {
    return false;
  }
  Drain(StopKind::kMembership, SIGTERM,
        member.name + " runs workers that this coordinator's record does not have", out);
  return true;
}

void JobMachine::On(const WorkersEnded& ended, const FromAgent& envelope, Out& out) {
  for (const WorkerExit& exit : ended.exits) {
    On(WorkerExited{exit}, envelope, out);
  }
}

void JobMachine::OnFailedWorker(const WorkerExited& exited, const FromAgent& envelope, Out& out) {
  Failure failure = FailureOf(envelope, CauseKind::kWorkerFailed, DescribeExit(exited.exit));
  failure.worker = exited.exit;
  const std::string what = failure.what + " on " + failure.node_name;
  const bool is_own_failure = RecordFailure(std::move(failure), out.now - exited.age, out);
  if (phase() == Phase::kRunning || is_own_failure) {
    Abort(what, out);
  }
}

void JobMachine::On(const NodeFaulted& fault, const FromAgent& envelope, Out& out) {
  World::Member* member = FindSender(envelope);
  if (fault.kind == CauseKind::kNodeWedged &&
      membership_.nodes().Find(envelope.incarnation) != nullptr) {
    LoseNode(envelope.incarnation, CauseKind::kNodeWedged, fault.what, out);
    return;
  }
  if (member == nullptr || member->state == World::MemberState::kStopped) {
    return;
  }
  RecordFailure(FailureOf(envelope, fault.kind, fault.what), out.now - fault.age, out);
  Abort(member->name + ": " + fault.what, out);
}

void JobMachine::On(const WorkersStopped&, const FromAgent& envelope, Out& out) {
  Node* cleaning = membership_.nodes().Find(envelope.incarnation);
  if (cleaning != nullptr && cleaning->state == NodeState::kCleaning) {
    if (envelope.generation == cleaning->held) {
      BecomeSpare(*cleaning, out);
    }
    return;
  }
  World::Member* member = FindSender(envelope);
  if (member != nullptr && world_.Stopped(*member) == World::Answered::kAll) {
    FinishStop(out);
  }
}

void JobMachine::On(const AgentLeft& left, const FromAgent& envelope, Out& out) {
  Node* node = membership_.nodes().Find(envelope.incarnation);
  if (node == nullptr) {
    ++stale_dropped_;
    return;
  }
  if (left.signal != 0 && !node->leaving) {
    OnSignalToAgent(*node, left.signal, out);
  }
  if (node->state == NodeState::kReleased) {
    if (!left.workers_running) {
      ending_.HeardOfNode(out.now);
      membership_.Dismiss(envelope.incarnation);
      MaybeSendFinish(out);
    }
    return;
  }
  departures_ += node->leaving ? 0 : 1;
  membership_.SetLeaving(*node);
  const std::string what =
      "left" + (left.signal != 0 ? " on signal " + std::to_string(left.signal) : std::string());
  if (!left.workers_running) {
    LoseNode(envelope.incarnation, CauseKind::kNodeLost, what, out);
  } else if (phase() == Phase::kRunning && node->IsMember()) {
    Drain(StopKind::kMembership, SIGTERM, node->info.name + " " + what, out);
  }
}

/// The sender, if it is a member and the message is about the current generation; see Note [Fencing
/// by generation].
World::Member* JobMachine::FindSender(const FromAgent& envelope) {
  World::Member* member = world_.FindSender(envelope);
  stale_dropped_ += member == nullptr ? 1 : 0;
  return member;
}

Failure JobMachine::FailureOf(const Node& node, CauseKind kind, std::string what) const {
  Failure failure;
  failure.kind = kind;
  failure.generation = generation();
  failure.node_name = node.info.name;
  failure.node_address = node.info.address;
  failure.group_rank = node.group_rank;
  failure.what = std::move(what);
  return failure;
}

Failure JobMachine::FailureOf(const FromAgent& envelope, CauseKind kind, std::string what) const {
  return FailureOf(membership_.nodes().At(envelope.incarnation), kind, std::move(what));
}

/// False if it is collateral of a stop.
bool JobMachine::RecordFailure(Failure failure, MonoTime since, Out& out) {
  out.effects.news.emplace_back(job::FailureReported{failure, out.now - since});
  return world_.failures().Add(std::move(failure), out.now, since);
}

}  // namespace fsdprun
