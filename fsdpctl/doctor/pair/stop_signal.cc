#include "fsdpctl/doctor/pair/stop_signal.h"

#include <poll.h>
#include <sys/signalfd.h>

namespace fsdprun::doctor {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

StopSignal::StopSignal() {
  const sigset_t set = StopSet();
  ::sigprocmask(SIG_BLOCK, &set, &old_mask_);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

StopSignal::~StopSignal() {
  // One that has come has done what it is for.
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof(info)) > 0) {
  }
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

bool StopSignal::has_come() const {
  pollfd polled{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) > 0;
}

}  // namespace fsdprun::doctor
