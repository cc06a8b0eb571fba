#pragma once

#include <functional>
#include <vector>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Turns signals into calls on the loop thread. A signal that was
/// ignored when the program started (nohup) stays ignored. SIGPIPE is ignored from here on.
/// Construct on the main thread before any other thread exists: the others inherit the mask.
class SignalWatcher {
 public:
  SignalWatcher(EventLoop& loop, const std::vector<int>& signals,
                std::function<void(int signal)> on_signal);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  /// Consumes a pending signal that the loop has not handled, for use after the loop has ended;
  /// 0 if there is none.
  int TakePending();

 private:
  EventLoop& loop_;
  UniqueFd fd_;
};

}  // namespace fsdprun
