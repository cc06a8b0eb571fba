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
  Node* known = membership_.nodes().Find(envelope.incarnation);
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
  const Incarnation incarnation = joined.node.incarnation;
  const std::string refusal =
      replaced_why_.empty() ? membership_.Refusal(joined.node) : NoMoreNodes();
  if (!refusal.empty()) {
    out.effects.actions.push_back(ToAgent{incarnation, Generation{}, RejectAgent{refusal, false}});
    return;
  }
  if (!joined.cannot_run.empty()) {
    OnCannotRun(joined, out);
    MaybeFinishCannotStart(out);
    return;
  }
  Membership::Admission admission = membership_.Admit(joined.node, held, out.now);
  if (!admission.warning.empty()) {
    out.effects.warning = std::move(admission.warning);
  }
  signalled_nodes_.erase(joined.node.name);
  SendTo(*admission.node, Generation{}, AdmissionOf(spec_), out);
  if (admission.replaced != Incarnation{}) {
    // The loss may form the next world: the newcomer is there already.
    LoseNode(admission.replaced, CauseKind::kNodeLost, "was replaced by a new agent", out);
  }
  Node& admitted = membership_.nodes().At(incarnation);
  if (admitted.state == NodeState::kCleaning) {
    StartCleaning(admitted, held, out);
  } else if (admitted.state == NodeState::kSpare) {
    BecomeSpare(admitted, out);
  }
  MaybeFinishCannotStart(out);
}

void JobMachine::Reattach(Node& node, Generation held, Out& out) {
  membership_.Reattach(node, out.now);
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
  const Node node = membership_.Lose(incarnation, what);
  if (kind != CauseKind::kNodeLost) {
    SendTo(node, Generation{},
           ReleaseAgent{1, "node " + node.info.name + ": " + what, true, /*job_goes_on=*/true},
           out);
  }
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
    membership_.nodes().Clear();
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
  for (const Node& node : membership_.nodes()) {
    if (IsMember(node) && node.state == owing) {
      stuck.push_back(node.info.incarnation);
    }
  }
  for (const Incarnation incarnation : stuck) {
    LoseNode(incarnation, CauseKind::kNodeStuck, what, out);
  }
}

}  // namespace fsdprun
