#include "fsdpctl/run/job_feed.h"

#include <memory>
#include <utility>

#include "base/signals_blocked.h"

namespace fsdprun {

JobFeed::JobFeed(EventLoop& loop, Ask ask, Callbacks callbacks)
    : loop_(loop), ask_(std::move(ask)), callbacks_(std::move(callbacks)) {
  Begin();
}

JobFeed::~JobFeed() {
  *is_live_ = false;
  loop_.Cancel(timer_);
  stop_->Stop();
  thread_.join();
}

void JobFeed::Again() { stop_->Stop(); }

/// A thread for each call: the one before has ended.
void JobFeed::Begin() {
  if (thread_.joinable()) {
    thread_.join();
  }
  stop_ = std::make_shared<CallStop>();
  callbacks_.on_asked();
  const SignalsBlocked blocked;  // Signals are the loop's.
  thread_ = std::thread([this, stop = stop_] { Call(stop); });
}

void JobFeed::Call(const std::shared_ptr<CallStop>& stop) {
  const absl::Status status = ask_(
      [this](const v1::ControlAnswer& answer) {
        PostIfLive([this, answer] { callbacks_.on_answer(answer); });
      },
      stop.get());
  PostIfLive([this, status] { Ended(status); });
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
