#pragma once

#include <signal.h>

#include "base/unique_fd.h"

namespace fsdprun::doctor {

/// SIGINT, SIGTERM and SIGHUP end waits while this exists, instead of the program. Construct before
/// threads are started: they inherit what is blocked.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Readable once one has come, and from then on.
  int fd() const { return fd_.get(); }
  bool has_come() const;

 private:
  sigset_t old_mask_{};
  UniqueFd fd_;
};

}  // namespace fsdprun::doctor
