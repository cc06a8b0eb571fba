// Nodes that come and go.

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>

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
  if (world_.HasLostGeneration(envelope.incarnation, envelope.generation)) {
    const bool is_behind = envelope.generation > generation();
    LoseNode(envelope.incarnation, CauseKind::kNodeLost,
             is_behind ? "runs a world that this coordinator's record does not have"
                       : "rejoined without its generation",
             out, is_behind);
    Admit(joined, envelope.generation, out);
    return;
  }
  Reattach(*known, envelope.generation, out);
}

void JobMachine::Admit(const AgentJoined& joined, Generation held, Out& out) {
  const Incarnation incarnation = joined.node.incarnation;
  if (TurnDrainedAway(incarnation, out)) {
    return;
  }
  if (outcome()) {
    out.effects.messages.push_back(
        ToAgent{incarnation, Generation{}, ending_.ReleaseOfLate(incarnation, held)});
    return;
  }
  std::string refusal = Mismatch(joined.build, {});
  if (refusal.empty()) {
    refusal = place_.is_lost() ? NoMoreNodes() : membership_.Refusal(joined.node);
  }
  if (!refusal.empty()) {
    out.effects.messages.push_back(ToAgent{incarnation, Generation{}, RejectAgent{refusal, false}});
    return;
  }
  if (!joined.cannot_run.empty()) {
    OnCannotRun(joined, out);
    MaybeFinishCannotStart(out);
    return;
  }
  Membership::Admission admission = membership_.Admit(joined.node, held, out.now);
  if (!admission.warning.empty()) {
    out.effects.news.emplace_back(job::Warned{std::move(admission.warning)});
  }
  out.effects.news.emplace_back(job::NodeJoined{joined.node});
  agent_signals_.ForgetNode(joined.node.name);
  LeaveOutIfHeld(*admission.node);
  SendTo(*admission.node, Generation{}, AdmissionOf(spec_), out);
  TellIfLeftOut(*admission.node, out);
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
  if (IsToLeave(node)) {
    ending_.HeardOfNode(out.now);
    TellToLeave(node, out);
    return;
  }
  if (node.state != NodeState::kReleased) {
    SendTo(node, Generation{}, AdmissionOf(spec_), out);
    TellIfLeftOut(node, out);
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
    case NodeState::kMember:
      if (std::optional<ToAgent> order = world_.OpenOrder(*world_.Find(node.info.incarnation))) {
        out.effects.messages.emplace_back(*std::move(order));
      }
      return;
    case NodeState::kCleaning:
      StartCleaning(node, node.held, out);
      return;
    case NodeState::kReleased:
      ending_.HeardOfNode(out.now);
      SendTo(node, Generation{}, ending_.ReleaseOf(node), out);
      return;
    case NodeState::kSpare:
      return;
  }
}

void JobMachine::StartCleaning(Node& node, Generation held, Out& out) {
  membership_.SetState(node, NodeState::kCleaning);
  node.held = held;
  SendTo(node, held, StopWorkers{SIGTERM, Duration{}, "left over from an earlier generation"}, out);
}

void JobMachine::BecomeSpare(Node& node, Out& out) {
  membership_.SetState(node, NodeState::kSpare);
  node.held = {};
  TurnSparesAway(out);
  MaybeForm(out);
  MaybeGrow(out);
}

// --- Nodes that cannot run the program

/// A world that has run shows that the program is right, so a node that comes later and lacks it is
/// turned away. Before the first world the job ends: its command line needs a correction.
void JobMachine::OnCannotRun(const AgentJoined& joined, Out& out) {
  const NodeInfo& info = joined.node;
  const std::string what = "node " + info.name + " cannot run the program: " + joined.cannot_run;
  if (formations_ > 0) {
    out.effects.messages.push_back(
        ToAgent{info.incarnation, Generation{}, RejectAgent{joined.cannot_run, false}});
    return;
  }
  const Node& node = membership_.AdmitToLastWords(info, out.now);
  SendTo(node, Generation{}, AdmissionOf(spec_), out);
  if (!cannot_start_) {
    cannot_start_ = FailureOf(node, CauseKind::kCannotStart, what);
    cannot_start_at_ = out.now + spec_.cannot_start_notice;
    SetReason(what + "; telling the other nodes");
  }
}

void JobMachine::MaybeFinishCannotStart(Out& out) {
  const bool all_know = static_cast<int>(membership_.nodes().size()) >= spec_.max_nodes;
  if (!cannot_start_ || outcome() || (out.now < cannot_start_at_ && !all_know)) {
    return;
  }
  Finish(job::NeverStarted(*cannot_start_), out);
}

// --- Losing

void JobMachine::LoseNode(Incarnation incarnation, CauseKind kind, const std::string& what,
                          Out& out, bool is_record_behind) {
  const bool has_been_told = IsToLeave(membership_.nodes().At(incarnation));
  const Node node = membership_.Lose(incarnation, has_been_told ? "drained by an operator" : what);
  if (has_been_told) {
    out.effects.news.emplace_back(job::NodeDrained{node.info});
  } else {
    out.effects.news.emplace_back(job::NodeLost{node.info.name, what});
  }
  if (kind != CauseKind::kNodeLost && !has_been_told) {
    SendTo(node, Generation{},
           ReleaseAgent{1, "node " + node.info.name + ": " + what, true, /*job_goes_on=*/true},
           out);
  }
  const std::optional<World::Member> member =
      node.IsMember() ? std::optional(world_.Remove(incarnation)) : std::nullopt;
  if (!operator_signal_ && !outcome() &&
      agent_signals_.IsForAllWithout(node, membership_.nodes(), formations_ > 0)) {
    TakeForAll(agent_signals_.last_signal(), out);
  }
  if (member) {
    HandleMemberLoss(node, *member, kind, what, out, is_record_behind);
  } else {
    MaybeForm(out);
  }
}

/// `node` was `member`, and has already been removed.
void JobMachine::HandleMemberLoss(const Node& node, const World::Member& member, CauseKind kind,
                                  const std::string& what, Out& out, bool is_record_behind) {
  const bool is_failure =
      job::KindOf({.cause = kind,
                   .was_leaving = node.leaving,
                   .was_done = member.IsDone(),
                   .has_begun = world_.WasCommitted() && !is_record_behind}) == StopKind::kFailure;
  const std::string why = "node " + node.info.name + " " + what;
  if (is_failure) {
    const MonoTime since = node.connected ? node.last_heard : node.stream_lost_at;
    RecordFailure(FailureOf(node, kind, why), since, out);
  }
  if (!node.leaving && !world_.WasCommitted() && !is_record_behind) {
    quarantine_.LostEarly({.node = job::KeyOf(node.info),
                           .had_others = HasOthersThan(job::KeyOf(node.info)),
                           .is_of_several = false,
                           .worker = std::nullopt,
                           .what = why});
  }
  if (phase() == Phase::kStopping) {
    if (is_failure && member.state != World::MemberState::kStopped) {
      Abort(why, out);
    }
    if (!world_.IsAwaited()) {
      FinishStop(out);
    }
    return;
  }
  if (phase() == Phase::kRunning && member.IsDone()) {
    return;  // all its workers have succeeded
  }
  if (is_failure) {
    Abort(why, out);
  } else {
    Drain(StopKind::kMembership, SIGTERM, why, out);
  }
}

}  // namespace fsdprun
