#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/event_loop.h"
#include "base/mutex.h"

namespace fsdprun {

/// Posts to a loop from threads that may outlive it: what comes too late is dropped.
/// Thread: the loop's.
class LoopGate {
 public:
  using Post = std::function<void(std::function<void()>)>;

  explicit LoopGate(EventLoop& loop) : shared_(std::make_shared<Shared>(&loop)) {}
  ~LoopGate() {
    MutexLock lock(shared_->mu);
    shared_->loop = nullptr;
  }
  LoopGate(const LoopGate&) = delete;
  LoopGate& operator=(const LoopGate&) = delete;

  /// To be called on any thread, at any time.
  Post poster() const {
    return [shared = shared_](std::function<void()> closure) {
      MutexLock lock(shared->mu);
      if (shared->loop != nullptr) {
        shared->loop->Post(std::move(closure));
      }
    };
  }

 private:
  struct Shared {
    explicit Shared(EventLoop* l) : loop(l) {}

    Mutex mu;
    EventLoop* loop ABSL_GUARDED_BY(mu);
  };

  const std::shared_ptr<Shared> shared_;
};

}  // namespace fsdprun
