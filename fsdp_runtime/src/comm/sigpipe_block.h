#pragma once

#include <signal.h>
#include <time.h>

namespace fsdp {

/// While it lives, a write of this thread to a connection that the peer has closed fails with EPIPE
/// instead of ending the process. Threads started during that time inherit the mask and keep it.
/// Gloo and libuv, with which c10d serves its store, write without MSG_NOSIGNAL, and a library must
/// not change the process's SIGPIPE handler.
class SigpipeBlock {
 public:
  SigpipeBlock() {
    ::sigemptyset(&sigpipe_);
    ::sigaddset(&sigpipe_, SIGPIPE);
    was_pending_ = is_pending();
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlock() {
    if (!was_pending_ && is_pending()) {
      const timespec at_once{};
      ::sigtimedwait(&sigpipe_, nullptr, &at_once);
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  static bool is_pending() {
    sigset_t pending;
    return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1;
  }

  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace fsdp
