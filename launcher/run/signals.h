#pragma once

#include <functional>
#include <vector>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Turns signals into calls on the loop thread. A signal that was
/// ignored when the program started (nohup) stays ignored. SIGPIPE and SIGXFSZ are ignored from
/// here on. Construct on the main thread before any other thread exists: the others inherit the
/// mask.
class SignalWatcher {
 public:
  struct Watch {
    std::vector<int> signals;
    std::function<void(int signal)> on_signal;
  };

  /// `ending` signals end the job, `forwarded` ones go to the workers; no signal is in both.
  SignalWatcher(EventLoop& loop, const Watch& ending, const Watch& forwarded);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  /// Consumes pending signals that the loop has not handled, for use while it does not run. The
  /// first ending one; 0 if there is none.
  int TakePending();

 private:
  /// The next pending signal; 0 if there is none.
  int TakeOne() const;
  bool IsForwarded(int signal) const;

  EventLoop& loop_;
  const std::vector<int> forwarded_;
  UniqueFd fd_;
};

}  // namespace fsdprun
