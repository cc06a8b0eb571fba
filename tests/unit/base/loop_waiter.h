#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "base/event_loop.h"

namespace fsdprun {

/// Runs a test's event loop until a condition holds. The condition is evaluated at the beginning
/// and after every Notice(), which every callback that changes its inputs has to call.
class LoopWaiter {
 public:
  explicit LoopWaiter(EventLoop& loop) : loop_(loop) {}

  /// Runs the loop until `condition` holds; false if it does not within kLimit.
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
    const EventLoop::TimerId limit = loop_.At(MonoNow() + kLimit, end);
    loop_.Run();
    loop_.Cancel(limit);
    check_ = nullptr;
    return holds;
  }

  /// For conditions that no callback reports: evaluates again every millisecond.
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
  /// Far longer than any event takes, so that a slow machine fails no test.
  static constexpr Duration kLimit = std::chrono::seconds(60);

  EventLoop& loop_;
  /// Set while RunUntil() waits.
  std::function<void()> check_;
};

}  // namespace fsdprun
