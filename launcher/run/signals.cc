#include "launcher/run/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "base/check.h"

namespace fsdprun {

SignalWatcher::SignalWatcher(EventLoop& loop, const std::vector<int>& signals,
                             std::function<void(int signal)> on_signal)
    : loop_(loop) {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : signals) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_IGN) {
      sigaddset(&watched, signal);
    }
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  fd_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  FSDPRUN_CHECK(fd_.valid(), "cannot watch signals");
  loop_.Watch(fd_.get(), EPOLLIN, [this, on_signal = std::move(on_signal)](uint32_t) {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      on_signal(static_cast<int>(info.ssi_signo));
    }
  });
}

int SignalWatcher::TakePending() {
  signalfd_siginfo info{};
  const bool is_there =
      ::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info));
  return is_there ? static_cast<int>(info.ssi_signo) : 0;
}

SignalWatcher::~SignalWatcher() { loop_.Unwatch(fd_.get()); }

}  // namespace fsdprun
