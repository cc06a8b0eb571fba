#include "worker/run/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "proto/worker_contract.h"
#include "worker/run/stop_plan.h"

namespace fsdprun::worker {
namespace {

static_assert(std::atomic<int64_t>::is_always_lock_free, "used in a signal handler");

std::atomic<bool> is_raised{false};
/// Nanoseconds of CLOCK_MONOTONIC, steady_clock's; set before is_raised.
std::atomic<int64_t> raised_at_ns{0};
std::atomic<bool> is_acknowledged{false};
std::atomic<int64_t> timeout_ms{
    std::chrono::ceil<std::chrono::milliseconds>(StopPlan::kUnknownGrace).count()};
timer_t timeout_timer;

void Arm(int64_t milliseconds) {
  itimerspec when{};
  when.it_value.tv_sec = milliseconds / 1000;
  when.it_value.tv_nsec = milliseconds % 1000 * 1'000'000;
  timer_settime(timeout_timer, 0, &when, nullptr);
}

extern "C" void OnStop(int) {
  const int saved_errno = errno;
  if (!is_raised) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    raised_at_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  if (!is_raised.exchange(true) && !is_acknowledged) {
    Arm(timeout_ms);
  }
  errno = saved_errno;
}

extern "C" void OnTimeout(int) {
  constexpr char kMessage[] =
      "fsdp-train: asked to stop, but the running step did not end (a peer is gone or stuck); "
      "leaving without a checkpoint\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(contract::kExitFailure);
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) != 0) {
    throw std::runtime_error(std::string("cannot handle signals: ") + std::strerror(errno));
  }
}

}  // namespace

void StopSignal::Install() {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  if (timer_create(CLOCK_MONOTONIC, &event, &timeout_timer) != 0) {
    throw std::runtime_error(std::string("cannot create a timer: ") + std::strerror(errno));
  }
  Handle(SIGALRM, OnTimeout);
  Handle(SIGTERM, OnStop);
  Handle(SIGINT, OnStop);
  Handle(SIGUSR1, OnStop);
  Handle(SIGUSR2, OnStop);
}

void StopSignal::SetTimeout(std::chrono::milliseconds timeout) {
  timeout_ms = timeout.count();
  // A pending signal gets the new phase's timeout, not the previous one's.
  if (is_raised && !is_acknowledged) {
    Arm(timeout_ms);
  }
}

std::optional<std::chrono::steady_clock::time_point> StopSignal::RaisedAt() {
  if (!is_raised) {
    return std::nullopt;
  }
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(raised_at_ns));
}

void StopSignal::Acknowledge() {
  is_acknowledged = true;
  Arm(0);
}

void StopSignal::WaitForTermination(std::chrono::milliseconds limit) {
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  signal(SIGUSR1, SIG_DFL);
  signal(SIGUSR2, SIG_DFL);
  if (is_raised) {
    raise(SIGTERM);
  }
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
  ppoll(nullptr, 0, &time, nullptr);
}

}  // namespace fsdprun::worker
