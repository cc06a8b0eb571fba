// Whether this launcher is still the host of its job.
//
// Note [One host of a job]
// While this launcher could not be heard of, another may have become the host of the job, and may
// have begun a world; nothing but the host keeps the workers of both apart. So a world is formed,
// and its workers are started, only while it is certain that the place is this launcher's. That is
// so for a while after the place was taken, or was looked up (JobSpec::place_sure_for). It is
// looked up when a world begins to stop, while its workers end, and what was found before is of no
// use after that; before a world that runs is stopped in order to grow, which can wait; and
// whenever there are enough nodes, or all of them are prepared, and it is not certain any more. The
// first world is no exception. While the place cannot be looked up the job waits, as for nodes; at
// the join timeout it ends. Who knows that another has the place says so unasked. Workers that run
// then were started before the place was lost: they are left alone, but no others follow, and nodes
// without a part in their world are sent away, to join at the other host.

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

bool JobMachine::IsPlaceSure(MonoTime now) const {
  return spec_.place_sure_for <= Duration{} || now <= place_sure_until_;
}

void JobMachine::CheckPlace(Out& out) {
  if (spec_.place_sure_for > Duration{} && !awaits_place()) {
    place_asked_at_ = out.now;
    out.effects.actions.emplace_back(job::CheckPlace{});
  }
}

std::string JobMachine::PlaceQuestion() const {
  return "making sure that no other launcher has taken the run id" +
         (place_unknown_why_.empty() ? "" : ": " + place_unknown_why_);
}

void JobMachine::Handle(const job::PlaceChecked& checked, Out& out) {
  if (!awaits_place()) {
    ++stale_dropped_;
    out.changed = false;
    return;
  }
  place_asked_at_ = MonoTime::max();
  place_unknown_why_.clear();
  if (checked.at < place_doubted_at_) {
    CheckPlace(out);  // It was asked for before the stop.
    return;
  }
  place_sure_until_ = checked.at + spec_.place_sure_for;
  GoOnHere(out);
}

void JobMachine::Handle(const job::PlaceUnknown& unknown, Out& out) {
  place_sure_until_ = MonoTime::min();
  if (awaits_place()) {
    place_unknown_why_ = unknown.why;
    GoOnHere(out);
  }
}

/// With what waits for the place.
void JobMachine::GoOnHere(Out& out) {
  MaybeForm(out);
  MaybeGrow(out);
  MaybeCommit(out);
}

void JobMachine::Handle(const job::HostReplaced& replaced, Out& out) {
  if (!outcome_ && !operator_signal_ && replaced_why_.empty()) {
    LosePlace(replaced.why, out);
  }
}

/// Nothing is begun here any more. What is being drained may end what it does.
void JobMachine::LosePlace(std::string why, Out& out) {
  replaced_why_ = std::move(why);
  place_asked_at_ = MonoTime::max();
  grow_at_ = grow_by_ = MonoTime::max();
  TurnSparesAway(out);
  if (phase() == Phase::kRendezvous) {
    FinishReplaced(out);
  } else if (phase() == Phase::kPreparing) {
    BeginStop(StopKind::kMembership, SIGTERM, GraceOf(StopKind::kFailure, spec_), replaced_why_,
              out);
  }
}

/// The time to wait is over, and nothing but the place is missing.
void JobMachine::GiveUpPlace(Out& out) {
  is_place_unknown_ = true;
  LosePlace(
      "it could not be found out whether this launcher still hosts its run id (" +
          (place_unknown_why_.empty() ? "the rendezvous file, etcd or the endpoint did not answer"
                                      : place_unknown_why_) +
          "), and a launcher that could find out may have taken it; remove the cause, then start "
          "all nodes of this job again",
      out);
}

std::string JobMachine::NoMoreNodes() const {
  return "this job takes no more nodes: " + replaced_why_;
}

/// Who has had no part in the last world waits in vain, but may find the other host.
void JobMachine::TurnSparesAway(Out& out) {
  if (replaced_why_.empty()) {
    return;
  }
  for (const Incarnation stranger : membership_.Strangers()) {
    out.effects.actions.push_back(
        ToAgent{stranger, Generation{}, RejectAgent{NoMoreNodes(), /*rejoin=*/false}});
    membership_.Dismiss(stranger);
  }
}

}  // namespace fsdprun
