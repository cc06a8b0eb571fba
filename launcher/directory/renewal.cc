#include "launcher/directory/renewal.h"

#include <utility>

namespace fsdprun {

Renewal::Renewal(std::function<void()> renew)
    : renew_(std::move(renew)), thread_([this] { Run(); }) {}

Renewal::~Renewal() {
  {
    MutexLock lock(mu_);
    is_ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void Renewal::Run() {
  for (;;) {
    {
      MutexLock lock(mu_);
      if (changed_.WaitUntil(mu_, MonoNow() + kInterval,
                             [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_ending_; })) {
        return;
      }
    }
    renew_();
  }
}

}  // namespace fsdprun
