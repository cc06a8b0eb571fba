#include "launcher/run/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/check.h"

namespace fsdprun {

SignalWatcher::SignalWatcher(EventLoop& loop, const Watch& ending, const Watch& forwarded)
    : loop_(loop), forwarded_(forwarded.signals) {
  sigset_t watched;
  sigemptyset(&watched);
  for (const Watch* watch : {&ending, &forwarded}) {
    for (const int signal : watch->signals) {
      struct sigaction current {};
      ::sigaction(signal, nullptr, &current);
      if (current.sa_handler != SIG_IGN) {
        sigaddset(&watched, signal);
      }
    }
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // A file that may not grow is an error of its write.
  ::pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  fd_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  FSDPRUN_CHECK(fd_.valid(), "cannot watch signals");
  loop_.Watch(fd_.get(), EPOLLIN,
              [this, end = ending.on_signal, forward = forwarded.on_signal](uint32_t) {
                while (const int signal = TakeOne()) {
                  (IsForwarded(signal) ? forward : end)(signal);
                }
              });
}

int SignalWatcher::TakeOne() const {
  signalfd_siginfo info{};
  const bool is_there =
      ::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info));
  return is_there ? static_cast<int>(info.ssi_signo) : 0;
}

bool SignalWatcher::IsForwarded(int signal) const {
  return std::find(forwarded_.begin(), forwarded_.end(), signal) != forwarded_.end();
}

int SignalWatcher::TakePending() {
  while (const int signal = TakeOne()) {
    if (!IsForwarded(signal)) {
      return signal;
    }
  }
  return 0;
}

SignalWatcher::~SignalWatcher() { loop_.Unwatch(fd_.get()); }

}  // namespace fsdprun
