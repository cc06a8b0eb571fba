#include "launcher/coordinator/job_machine.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::Phase;

std::string_view job::PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kRendezvous:
      return "rendezvous";
    case Phase::kPreparing:
      return "preparing";
    case Phase::kRunning:
      return "running";
    case Phase::kStopping:
      return "stopping";
    case Phase::kReleasing:
      return "releasing";
    case Phase::kFinished:
      return "finished";
  }
  return "?";
}

Phase JobMachine::phase() const {
  if (outcome()) {
    return ending_.is_finished() ? Phase::kFinished : Phase::kReleasing;
  }
  switch (world_.phase()) {
    case World::Phase::kNone:
      return Phase::kRendezvous;
    case World::Phase::kPreparing:
      return Phase::kPreparing;
    case World::Phase::kRunning:
      return Phase::kRunning;
    case World::Phase::kStopping:
      return Phase::kStopping;
  }
  return Phase::kRendezvous;
}

AdmitAgent AdmissionOf(const JobSpec& spec) {
  return AdmitAgent{.node_lease = spec.dead_after,
                    .terms = JobTerms{spec.min_nodes, spec.max_nodes, spec.max_restarts,
                                      spec.join_timeout, spec.last_call},
                    .may_be_taken_over = spec.may_be_taken_over};
}

JobMachine::JobMachine(const JobSpec& spec)
    : spec_(spec),
      membership_(spec_),
      world_(spec_),
      place_(spec_),
      agent_signals_(spec_),
      rendezvous_(spec_),
      growth_(spec_),
      quarantine_(spec_),
      ending_(spec_),
      first_record_is_due_(spec_.keeps_record()) {
  FSDPRUN_CHECK(spec_.min_nodes >= 1 && spec_.min_nodes <= spec_.max_nodes, "1 <= min <= max");
  FSDPRUN_CHECK(spec_.max_restarts >= 0, "the restart budget is a count");
  FSDPRUN_CHECK(spec_.suspect_after < spec_.dead_after, "suspicion comes before death");
  FSDPRUN_CHECK(!spec_.keeps_record() || !spec_.node_ranks_bind,
                "a rank is given away only by who knows who has it");
  FSDPRUN_CHECK(spec_.restart_backoff <= spec_.max_restart_backoff, "the longest pause is longest");
}

job::Effects JobMachine::Step(const job::Event& event, MonoTime now) {
  job::Effects effects;
  Step(event, now, effects);
  return effects;
}

void JobMachine::Step(const job::Event& event, MonoTime now, job::Effects& effects) {
  before_ = Now();
  effects.Clear();
  Out out{effects, now, true};
  if (!begun_) {
    begun_ = true;
    rendezvous_.Begin(Duration{}, now);
    SetWaitsForNodes();
  }
  ForgiveLateness(now, effects);
  std::visit([&](const auto& e) { Handle(e, out); }, event);
  if (now >= membership_.next_scan()) {
    ScanLeases(out);
  }
  revision_ += out.changed ? 1 : 0;
  promised_wake_ = NextWake();
  effects.wake_at = promised_wake_;
  if (HasRecordChanged() || std::exchange(first_record_is_due_, false)) {
    first_record_is_due_ = false;
    effects.persist = ToRecord();
  }
}

/// What was due while the coordinator itself did not run may have been answered: the answers lie
/// unread.
void JobMachine::ForgiveLateness(MonoTime now, job::Effects& effects) {
  const Lateness::Found found = lateness_.At(promised_wake_, now);
  if (found.forgiven == Duration{}) {
    return;
  }
  if (found.late > kStallTolerance) {
    effects.news.emplace_back(job::Stalled{found.late});
  }
  const Duration lateness = found.forgiven;
  membership_.ForgiveLateness(found, now);
  cannot_start_at_ =
      cannot_start_at_ == MonoTime::max() ? cannot_start_at_ : cannot_start_at_ + lateness;
  ending_.PutOffDeadline(lateness);
  rendezvous_.PutOff(lateness);
  world_.PutOffDeadline(lateness);
}

// --- Timers

void JobMachine::Handle(const job::TimerDue&, Out& out) {
  out.changed = false;
  if (out.now >= world_.deadline()) {
    OnOverdue(out);
  }
  if (ending_.EndWaitIfDue(out.now)) {
    out.changed = true;
    membership_.DismissAll();
    MaybeSendFinish(out);
  }
  OnDelaysDue(out);
  if (phase() != Phase::kRendezvous) {
    return;
  }
  if (rendezvous_.EndLastCallIfDue(out.now)) {
    out.changed = true;
    MaybeForm(out);
  }
  if (phase() == Phase::kRendezvous && out.now >= rendezvous_.join_deadline()) {
    OnJoinTimeout(out);
  }
}

void JobMachine::OnDelaysDue(Out& out) {
  if (out.now >= growth_.due()) {
    out.changed = true;
    Grow(out);
  }
  if (phase() != Phase::kRendezvous) {
    return;
  }
  if (out.now >= cannot_start_at_) {
    out.changed = true;
    MaybeFinishCannotStart(out);
  } else if (rendezvous_.EndPauseIfDue(out.now)) {
    out.changed = true;
    MaybeForm(out);
  }
}

void JobMachine::ScanLeases(Out& out) {
  const Leases::Findings findings = membership_.ScanLeases(out.now);
  out.changed |= findings.has_changes;
  if (!findings.notice.empty()) {
    SetReason(findings.notice);
  }
  for (const Leases::Lapse& lapse : findings.lapses) {
    LoseNode(lapse.incarnation, CauseKind::kNodeLost, lapse.what, out);
  }
}

void JobMachine::OnOverdue(Out& out) {
  out.changed = true;
  const World::Overdue overdue = world_.PassDeadline();
  if (phase() == Phase::kPreparing && overdue.members.empty()) {
    GiveUpPlace(out);
    return;
  }
  const bool is_preparing = phase() == Phase::kPreparing;
  for (const Incarnation late : overdue.members) {
    // Who is silent is not stuck, but out of reach; see Note [Before the job runs].
    const bool is_silent = is_preparing && membership_.nodes().At(late).suspect;
    LoseNode(late, is_silent ? CauseKind::kNodeLost : CauseKind::kNodeStuck, overdue.what, out);
  }
}

MonoTime JobMachine::NextWake() const {
  if (ending_.is_finished()) {
    return MonoTime::max();
  }
  MonoTime wake =
      std::min({membership_.next_scan(), world_.deadline(), ending_.deadline(), growth_.due()});
  if (phase() == Phase::kRendezvous) {
    wake = std::min({wake, rendezvous_.NextWake(), cannot_start_at_});
  }
  return wake;
}

// --- For the parts below

void JobMachine::SendTo(const Node& node, Generation g, CoordinatorMessage message, Out& out) {
  out.effects.messages.push_back(ToAgent{node.info.incarnation, g, std::move(message)});
}

void JobMachine::Send(World::Orders orders, Out& out) {
  out.effects.messages.insert(out.effects.messages.end(), std::make_move_iterator(orders.begin()),
                              std::make_move_iterator(orders.end()));
}

void JobMachine::SetReason(std::string reason) {
  reason_ = std::move(reason);
  waits_for_nodes_ = false;
}

void JobMachine::SetWaitsForNodes() { waits_for_nodes_ = true; }

std::string JobMachine::reason() const {
  return waits_for_nodes_ ? "waiting for nodes: " + membership_.Missing(membership_.Eligible())
                          : reason_;
}

std::optional<job::StopStatus> JobMachine::stop() const {
  if (phase() != Phase::kStopping) {
    return std::nullopt;
  }
  job::StopStatus status = world_.StopProgress();
  status.operator_signal = operator_signal_.value_or(0);
  return status;
}

}  // namespace fsdprun
