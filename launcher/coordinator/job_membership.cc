#include <algorithm>
#include <csignal>
#include <utility>

#include "base/check.h"
#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

// --- Joining

void JobMachine::On(const AgentJoined& joined, const FromAgent& envelope, Out& out) {
  if (joined.node.incarnation != envelope.incarnation || envelope.incarnation == Incarnation{}) {
    ++stale_dropped_;
    return;
  }
  generation_floor_ = std::max({generation_floor_, joined.highest_seen, envelope.generation});
  Node* known = nodes_.Find(envelope.incarnation);
  if (known == nullptr) {
    Admit(joined, envelope.generation, out);
    return;
  }
  if (HasLostGeneration(*known, envelope.generation)) {
    LoseNode(envelope.incarnation, CauseKind::kNodeLost, "rejoined without its generation", out);
    Admit(joined, envelope.generation, out);
    return;
  }
  Reattach(*known, envelope.generation, out);
}

/// A member that has acknowledged the current generation must still hold it.
bool JobMachine::HasLostGeneration(const Node& node, Generation held) const {
  switch (node.state) {
    case NodeState::kPrepared:
    case NodeState::kCommitted:
    case NodeState::kStarted:
      return held != generation_;
    default:
      return false;
  }
}

std::string JobMachine::RejectionReason(const NodeInfo& info) const {
  if (info.local_world_size < 1) {
    return "node " + info.name + " offers " + std::to_string(info.local_world_size) +
           " workers; at least 1 is needed";
  }
  if (!info.requested_node_rank || !spec_.node_ranks_bind) {
    return "";
  }
  const int rank = *info.requested_node_rank;
  if (rank < 0 || rank >= spec_.max_nodes) {
    return "node rank " + std::to_string(rank) + " is outside 0.." +
           std::to_string(spec_.max_nodes - 1) + "; check --node-rank and --nnodes";
  }
  const Node* holder = HolderOf(rank);
  if (holder != nullptr && holder->connected && !holder->suspect) {
    return "node rank " + std::to_string(rank) + " is taken by node " + holder->info.name + " (" +
           holder->info.address + "); give every node its own --node-rank";
  }
  return "";
}

const job::Node* JobMachine::HolderOf(int requested_node_rank) const {
  for (const Node& node : nodes_) {
    if (node.info.requested_node_rank == requested_node_rank && !node.leaving) {
      return &node;
    }
  }
  return nullptr;
}

/// Nobody was promised the rank, and no node without a wish of its own holds it.
bool JobMachine::IsRankFree(int rank) const {
  for (const Node& node : nodes_) {
    const int held = IsMember(node) ? node.assignment.group_rank : node.previous_group_rank;
    if (!node.leaving && node.info.requested_node_rank.value_or(held) == rank) {
      return false;
    }
  }
  return true;
}

/// Empty, or what is to be said about it.
std::string JobMachine::DropImpossibleRank(NodeInfo* info) const {
  if (spec_.node_ranks_bind || !info->requested_node_rank) {
    return "";
  }
  const int rank = *info->requested_node_rank;
  const bool is_in_range = rank >= 0 && rank < spec_.max_nodes;
  if (is_in_range && IsRankFree(rank)) {
    return "";
  }
  info->requested_node_rank.reset();
  return "node " + info->name + " asks for node rank " + std::to_string(rank) + ", which " +
         (is_in_range ? "another node has" : "is not below --nnodes") +
         "; it gets another one (warned once)";
}

/// While the host of a finished job lingers. A node that has been released, but has not heard of
/// it, hears the same again; one that the job had lost hears how the job ended.
void JobMachine::ReleaseLate(Incarnation incarnation, Generation held, Out& out) {
  const auto released = released_codes_.find(incarnation);
  const bool was_in_last_world = held != Generation{} && held == outcome_->generation;
  ReleaseAgent release = Release(1);
  if (released != released_codes_.end()) {
    release.exit_code = released->second;
  } else if (was_in_last_world) {
    release.exit_code = outcome_->exit_code;
  } else {
    release.reason = "the job with this run id is over: " + outcome_->reason;
  }
  out.effects.actions.push_back(ToAgent{incarnation, Generation{}, release});
}

void JobMachine::Admit(const AgentJoined& joined, Generation held, Out& out) {
  if (outcome_) {
    ReleaseLate(joined.node.incarnation, held, out);
    return;
  }
  NodeInfo info = joined.node;
  const std::string refusal = replaced_why_.empty() ? RejectionReason(info) : NoMoreNodes();
  if (!refusal.empty()) {
    out.effects.actions.push_back(
        ToAgent{info.incarnation, Generation{}, RejectAgent{refusal, false}});
    return;
  }
  if (!joined.cannot_run.empty()) {
    OnCannotRun(joined, out);
    MaybeFinishCannotStart(out);
    return;
  }
  if (std::string warning = DropImpossibleRank(&info);
      !warning.empty() && !std::exchange(has_warned_of_rank_, true)) {
    out.effects.warning = std::move(warning);
  }
  const bool takes_rank = spec_.node_ranks_bind && info.requested_node_rank.has_value();
  const Node* holder = takes_rank ? HolderOf(*info.requested_node_rank) : nullptr;
  const Incarnation replaced = holder != nullptr ? holder->info.incarnation : Incarnation{};
  const Incarnation incarnation = info.incarnation;
  signalled_nodes_.erase(info.name);
  Node node;
  node.info = std::move(info);
  node.state = held != Generation{} ? NodeState::kCleaning : NodeState::kSpare;
  node.held = held;
  node.sequence = next_sequence_++;
  node.last_heard = out.now;
  next_scan_ = std::min(next_scan_, out.now + spec_.suspect_after);
  SendTo(nodes_.Insert(std::move(node)), Generation{}, AdmissionOf(spec_), out);
  if (replaced != Incarnation{}) {
    // The loss may form the next world: the newcomer is there already.
    LoseNode(replaced, CauseKind::kNodeLost, "was replaced by a new agent", out);
  }
  Node& admitted = nodes_.At(incarnation);
  if (admitted.state == NodeState::kCleaning) {
    StartCleaning(admitted, held, out);
  } else if (admitted.state == NodeState::kSpare) {
    BecomeSpare(admitted, out);
  }
  MaybeFinishCannotStart(out);
}

void JobMachine::Reattach(Node& node, Generation held, Out& out) {
  node.connected = true;
  node.suspect = false;
  node.last_heard = out.now;
  next_scan_ = std::min(next_scan_, out.now + spec_.suspect_after);
  if (node.state != NodeState::kReleased) {
    SendTo(node, Generation{}, AdmissionOf(spec_), out);
  }
  if (node.state == NodeState::kSpare && held != Generation{}) {
    StartCleaning(node, held, out);
  } else if (node.state == NodeState::kSpare) {
    BecomeSpare(node, out);
  } else {
    RepeatOpenOrder(node, out);
  }
}

void JobMachine::RepeatOpenOrder(Node& node, Out& out) {
  switch (node.state) {
    case NodeState::kPreparing:
      SendTo(node, generation_, PrepareGeneration{node.assignment}, out);
      return;
    case NodeState::kCommitted:
      SendTo(node, generation_, CommitGeneration{store_}, out);
      return;
    case NodeState::kStopping:
      SendTo(node, generation_, StopWorkers{stop_signal_, stop_grace_, stop_why_}, out);
      return;
    case NodeState::kCleaning:
      StartCleaning(node, node.held, out);
      return;
    case NodeState::kReleased:
      SendTo(node, Generation{}, Release(ReleaseCode(node)), out);
      return;
    case NodeState::kSpare:
    case NodeState::kPrepared:
    case NodeState::kStarted:
    case NodeState::kStopped:
      return;
  }
}

void JobMachine::StartCleaning(Node& node, Generation held, Out& out) {
  node.state = NodeState::kCleaning;
  node.held = held;
  SendTo(node, held, StopWorkers{SIGTERM, Duration{}, "left over from an earlier generation"}, out);
}

void JobMachine::BecomeSpare(Node& node, Out& out) {
  node.state = NodeState::kSpare;
  node.held = {};
  TurnSparesAway(out);
  MaybeForm(out);
  MaybeGrow(out);
}

// --- Losing

void JobMachine::LoseNode(Incarnation incarnation, CauseKind kind, const std::string& what,
                          Out& out) {
  const Node node = nodes_.At(incarnation);
  if (kind != CauseKind::kNodeLost) {
    SendTo(node, Generation{},
           ReleaseAgent{1, "node " + node.info.name + ": " + what, true, /*job_goes_on=*/true},
           out);
  }
  nodes_.Erase(incarnation);
  departed_.push_back(node.info.name + " (" + what + ")");
  const bool was_member = IsMember(node);
  const bool owed_answer = (phase_ == Phase::kPreparing && node.state == NodeState::kPreparing) ||
                           (phase_ == Phase::kRunning && node.state == NodeState::kCommitted) ||
                           (phase_ == Phase::kStopping && node.state == NodeState::kStopping);
  members_ -= was_member ? 1 : 0;
  awaiting_ -= owed_answer ? 1 : 0;
  if (WasLastToTell(node)) {
    TakeForAll(doubtful_signal_, out);
  }
  if (was_member) {
    HandleMemberLoss(node, kind, what, out);
  } else {
    MaybeForm(out);
  }
}

/// Handles the loss of the member `node`, which has already been removed.
void JobMachine::HandleMemberLoss(const Node& node, CauseKind kind, const std::string& what,
                                  Out& out) {
  const bool is_done = node.succeeded_count == node.info.local_world_size;
  const bool is_failure =
      job::KindOf({.cause = kind,
                   .was_leaving = node.leaving,
                   .was_done = is_done,
                   .has_begun = phase_ != Phase::kPreparing}) == StopKind::kFailure;
  if (is_failure) {
    const MonoTime since = node.connected ? node.last_heard : node.stream_lost_at;
    RecordFailure(FailureOf(node, kind, "node " + node.info.name + " " + what), since, out);
  }
  const std::string why = "node " + node.info.name + " " + what;
  if (phase_ == Phase::kStopping) {
    if (is_failure && node.state != NodeState::kStopped) {
      Abort(why, out);
    }
    if (awaiting_ == 0) {
      FinishStop(out);
    }
    return;
  }
  if (phase_ == Phase::kRunning && is_done) {
    return;  // all its workers have succeeded
  }
  if (is_failure) {
    Abort(why, out);
  } else {
    Drain(StopKind::kMembership, SIGTERM, why, out);
  }
}

void JobMachine::OnOrderTimeout(Out& out) {
  order_deadline_ = MonoTime::max();
  out.changed = true;
  if (phase_ == Phase::kReleasing) {
    nodes_.Clear();
    MaybeSendFinish(out);
    return;
  }
  if (phase_ == Phase::kPreparing && awaiting_ == 0) {
    GiveUpPlace(out);
    return;
  }
  NodeState owing = NodeState::kStopping;
  std::string what = "did not report its workers stopped in time";
  if (phase_ == Phase::kPreparing) {
    owing = NodeState::kPreparing;
    what = "did not set up logs and store within " + Seconds(spec_.prepare_timeout);
  } else if (phase_ == Phase::kRunning) {
    owing = NodeState::kCommitted;
    what = "did not start its workers within " + Seconds(spec_.start_timeout);
  }
  std::vector<Incarnation> stuck;
  for (const Node& node : nodes_) {
    if (IsMember(node) && node.state == owing) {
      stuck.push_back(node.info.incarnation);
    }
  }
  for (const Incarnation incarnation : stuck) {
    LoseNode(incarnation, CauseKind::kNodeStuck, what, out);
  }
}

}  // namespace fsdprun
