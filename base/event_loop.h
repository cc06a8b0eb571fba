#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// One thread's loop over descriptors, timers and posted closures. All mutable daemon state belongs
/// to the thread that calls Run(); every other thread may only Post(). Reactions must not block.
class EventLoop {
 public:
  using TimerId = uint64_t;
  using FdReaction = std::function<void(uint32_t epoll_events)>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Runs reactions until Stop(). The calling thread owns the loop from here on.
  void Run();
  /// Ends Run() after the current reaction. From any thread.
  void Stop();
  /// Queues `closure` to run on the loop thread. From any thread; in order per posting thread.
  void Post(absl::AnyInvocable<void()> closure) ABSL_LOCKS_EXCLUDED(mu_);

  /// Runs `closure` once at or after `when`. Loop thread only (or before Run()).
  TimerId At(MonoTime when, absl::AnyInvocable<void()> closure);
  /// Cancels a timer; does nothing if it has run or was cancelled.
  void Cancel(TimerId id);

  /// Calls `reaction` with the ready events of `fd` (EPOLLIN, ...). The caller keeps ownership of
  /// the descriptor and must Unwatch it before closing it. Loop thread only (or before Run()).
  void Watch(int fd, uint32_t epoll_events, FdReaction reaction);
  /// Changes the watched events.
  void Rewatch(int fd, uint32_t epoll_events);
  void Unwatch(int fd);

 private:
  void RunPosted();
  void RunDueTimers();
  int PollTimeoutMs() const;

  // Constant after construction.
  UniqueFd epoll_fd_;
  UniqueFd wake_fd_;

  // Owned by the loop thread.
  bool stopped_ = false;
  /// Registration id of each watched descriptor. Events carry the id instead of the descriptor,
  /// whose number may be reused before they are handled.
  std::map<int, uint64_t> registrations_;
  std::map<uint64_t, FdReaction> reactions_;
  uint64_t next_registration_ = 1;
  std::map<std::pair<MonoTime, TimerId>, absl::AnyInvocable<void()>> timers_;
  std::map<TimerId, MonoTime> timer_deadlines_;
  TimerId next_timer_ = 1;

  Mutex mu_;
  std::vector<absl::AnyInvocable<void()>> posted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fsdprun
