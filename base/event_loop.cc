#include "base/event_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace fsdprun {
namespace {

/// Registration id of the wake-up descriptor; the others start at 1.
constexpr uint64_t kWakeUp = 0;

}  // namespace

EventLoop::EventLoop()
    : epoll_fd_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  FSDPRUN_CHECK(epoll_fd_.valid() && wake_fd_.valid(), "out of file descriptors at start");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeUp}};
  FSDPRUN_CHECK(::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, wake_fd_.get(), &event) == 0,
                "cannot watch the wake-up descriptor");
}

EventLoop::~EventLoop() = default;

void EventLoop::Run() {
  stopped_ = false;
  while (!stopped_) {
    RunPosted();
    RunDueTimers();
    if (stopped_) {
      break;
    }
    epoll_event ready[64];
    const int count = ::epoll_wait(epoll_fd_.get(), ready, 64, PollTimeoutMs());
    FSDPRUN_CHECK(count >= 0 || errno == EINTR, "epoll_wait failed");
    for (int i = 0; i < count && !stopped_; ++i) {
      const uint64_t id = ready[i].data.u64;  // a copy: the kernel's struct is packed
      if (id == kWakeUp) {
        uint64_t ignored = 0;
        [[maybe_unused]] const ssize_t n = ::read(wake_fd_.get(), &ignored, sizeof(ignored));
        RunPosted();
        continue;
      }
      // Looked up here because an earlier reaction of this batch may have unwatched it.
      if (auto it = reactions_.find(id); it != reactions_.end()) {
        const FdReaction reaction = it->second;
        reaction(ready[i].events);
      }
    }
  }
}

void EventLoop::Stop() {
  Post([this] { stopped_ = true; });
}

void EventLoop::Post(absl::AnyInvocable<void()> closure) {
  {
    MutexLock lock(mu_);
    posted_.push_back(std::move(closure));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_fd_.get(), &one, sizeof(one));
}

void EventLoop::RunPosted() {
  std::vector<absl::AnyInvocable<void()>> batch;
  {
    MutexLock lock(mu_);
    batch.swap(posted_);
  }
  for (auto& closure : batch) {
    closure();
  }
}

EventLoop::TimerId EventLoop::At(MonoTime when, absl::AnyInvocable<void()> closure) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::make_pair(when, id), std::move(closure));
  timer_deadlines_.emplace(id, when);
  return id;
}

void EventLoop::Cancel(TimerId id) {
  if (auto it = timer_deadlines_.find(id); it != timer_deadlines_.end()) {
    timers_.erase(std::make_pair(it->second, id));
    timer_deadlines_.erase(it);
  }
}

/// After what was posted before: whoever decides at a time sees all that had come by then.
void EventLoop::RunDueTimers() {
  const MonoTime now = MonoNow();
  while (!stopped_ && !timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_deadlines_.erase(node.key().second);
    node.mapped()();
  }
}

int EventLoop::PollTimeoutMs() const {
  if (timers_.empty()) {
    return -1;
  }
  const auto left = timers_.begin()->first.first - MonoNow();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void EventLoop::Watch(int fd, uint32_t epoll_events, FdReaction reaction) {
  const uint64_t registration = next_registration_++;
  epoll_event event{.events = epoll_events, .data = {.u64 = registration}};
  FSDPRUN_CHECK(::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0,
                "cannot watch descriptor");
  registrations_[fd] = registration;
  reactions_[registration] = std::move(reaction);
}

void EventLoop::Rewatch(int fd, uint32_t epoll_events) {
  const auto it = registrations_.find(fd);
  FSDPRUN_CHECK(it != registrations_.end(), "descriptor is not watched");
  epoll_event event{.events = epoll_events, .data = {.u64 = it->second}};
  FSDPRUN_CHECK(::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, fd, &event) == 0,
                "descriptor is not watched");
}

void EventLoop::Unwatch(int fd) {
  if (const auto it = registrations_.find(fd); it != registrations_.end()) {
    ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
    reactions_.erase(it->second);
    registrations_.erase(it);
  }
}

}  // namespace fsdprun
