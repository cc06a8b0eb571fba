#include "launcher/coordinator/rendezvous.h"

namespace fsdprun {

void Rendezvous::Begin(Duration pause, MonoTime now) {
  pause_ = pause;
  pause_until_ = pause > Duration{} ? now + pause : MonoTime::max();
  join_deadline_ = now + pause + spec_.join_timeout;
  last_call_at_ = MonoTime::max();
  is_joining_over_ = false;
}

Rendezvous::Verdict Rendezvous::Consider(const View& view, MonoTime now) {
  if (view.eligible < spec_.min_nodes) {
    last_call_at_ = MonoTime::max();
    is_last_call_over_ = false;
    if (std::exchange(had_enough_, false)) {
      join_deadline_ = now + spec_.join_timeout;
      is_joining_over_ = false;
    }
    return Verdict::kTooFew;
  }
  had_enough_ = true;
  const bool may_wait = view.eligible < spec_.max_nodes && !is_joining_over_;
  if (may_wait && view.awaits_leases) {
    return Verdict::kAwaitLeases;
  }
  if (may_wait && view.is_first && !is_last_call_over_) {
    last_call_at_ = std::min(last_call_at_, now + spec_.last_call);
    return Verdict::kLastCall;
  }
  return Verdict::kComplete;
}

void Rendezvous::End() {
  had_enough_ = false;
  is_joining_over_ = false;
  join_deadline_ = MonoTime::max();
  last_call_at_ = MonoTime::max();
}

void Rendezvous::PutOff(Duration delay) {
  for (MonoTime* deadline : {&join_deadline_, &last_call_at_}) {
    *deadline = *deadline == MonoTime::max() ? *deadline : *deadline + delay;
  }
}

bool Rendezvous::EndLastCallIfDue(MonoTime now) {
  const bool is_due = ClearIfDue(last_call_at_, now);
  is_last_call_over_ = is_last_call_over_ || is_due;
  return is_due;
}

void Growth::Await(MonoTime now) {
  latest_ = std::min(latest_, now + spec_.growth_settle_max);
  due_ = std::min(now + spec_.growth_settle, latest_);
}

}  // namespace fsdprun
