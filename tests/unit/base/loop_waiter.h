#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "base/event_loop.h"

namespace fsdprun {

/// Runs a test's event loop until what the test waits for has happened. The condition is asked at
/// the beginning and after every Notice(), which belongs into every callback that changes what
/// conditions look at.
class LoopWaiter {
 public:
  explicit LoopWaiter(EventLoop& loop) : loop_(loop) {}

  /// Runs the loop until `condition` holds; false if it does not within kPatience.
  bool RunUntil(const std::function<bool()>& condition) {
    bool holds = false;
    bool is_over = false;
    const auto end = [&] {
      if (!std::exchange(is_over, true)) {
        loop_.Stop();
      }
    };
    check_ = [&] {
      if (!is_over && condition()) {
        holds = true;
        end();
      }
    };
    Notice();
    const EventLoop::TimerId limit = loop_.At(MonoNow() + kPatience, end);
    loop_.Run();
    loop_.Cancel(limit);
    check_ = nullptr;
    return holds;
  }

  /// For what nobody reports: asks again every millisecond.
  bool PollUntil(const std::function<bool()>& condition) {
    EventLoop::TimerId timer = 0;
    const bool holds = RunUntil([&] {
      timer = loop_.At(MonoNow() + std::chrono::milliseconds(1), [this] { Notice(); });
      return condition();
    });
    loop_.Cancel(timer);
    return holds;
  }

  /// What a condition depends on may have changed.
  void Notice() {
    loop_.Post([this] {
      if (check_) {
        check_();
      }
    });
  }

 private:
  /// For what must come, however slow the machine; no test measures how soon it does.
  static constexpr Duration kPatience = std::chrono::seconds(60);

  EventLoop& loop_;
  /// Set while RunUntil() waits.
  std::function<void()> check_;
};

}  // namespace fsdprun
