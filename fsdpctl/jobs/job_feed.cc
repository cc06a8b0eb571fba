#include "fsdpctl/jobs/job_feed.h"

#include <memory>
#include <utility>

#include "base/signals_blocked.h"

namespace fsdprun {

JobFeed::JobFeed(EventLoop& loop, Callbacks callbacks)
    : loop_(loop), callbacks_(std::move(callbacks)) {
  Begin();
}

JobFeed::~JobFeed() {
  *is_live_ = false;
  loop_.Cancel(timer_);
  Again();
  thread_.join();
}

void JobFeed::Again() {
  call_->stop.Stop();
  const MutexLock lock(call_->mu);
  call_->is_stopped = true;
  call_->changed.NotifyAll();
}

/// A thread for each call: the one before has ended.
void JobFeed::Begin() {
  if (thread_.joinable()) {
    thread_.join();
  }
  call_ = std::make_shared<Call>();
  Ask ask = callbacks_.on_begin();
  const SignalsBlocked blocked;  // Signals are the loop's.
  thread_ = std::thread([this, call = call_, ask = std::move(ask)] { Run(call, ask); });
}

void JobFeed::Run(const std::shared_ptr<Call>& call, const Ask& ask) {
  const absl::Status status =
      ask([&](const v1::ControlAnswer& answer) { Hand(call, answer); }, &call->stop);
  PostIfLive([this, status] { Ended(status); });
}

void JobFeed::Hand(const std::shared_ptr<Call>& call, const v1::ControlAnswer& answer) {
  {
    const MutexLock lock(call->mu);
    call->is_answer_pending = true;
  }
  PostIfLive([this, call, kept = std::make_shared<v1::ControlAnswer>(answer)] {
    callbacks_.on_answer(*kept);
    const MutexLock lock(call->mu);
    call->is_answer_pending = false;
    call->changed.NotifyAll();
  });
  const MutexLock lock(call->mu);
  call->changed.Wait(call->mu, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !call->is_answer_pending || call->is_stopped;
  });
}

void JobFeed::Ended(const absl::Status& status) {
  if (!callbacks_.on_ended(status)) {
    return;
  }
  timer_ = loop_.At(MonoNow() + kPause, [this] { Begin(); });
}

void JobFeed::PostIfLive(std::function<void()> what) {
  loop_.Post([live = is_live_, what = std::move(what)] {
    if (*live) {
      what();
    }
  });
}

}  // namespace fsdprun
