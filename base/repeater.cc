#include "base/repeater.h"

#include <utility>

namespace fsdprun {

Repeater::Repeater(Duration interval, std::function<void()> call)
    : interval_(interval), call_(std::move(call)), thread_([this] { Run(); }) {}

Repeater::~Repeater() {
  {
    MutexLock lock(mu_);
    is_ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void Repeater::Run() {
  for (;;) {
    {
      MutexLock lock(mu_);
      if (changed_.WaitUntil(mu_, MonoNow() + interval_,
                             [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_ending_; })) {
        return;
      }
    }
    call_();
  }
}

}  // namespace fsdprun
