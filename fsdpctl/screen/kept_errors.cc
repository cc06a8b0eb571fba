#include "fsdpctl/screen/kept_errors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fsdpctl/screen/crash_restore.h"

namespace fsdprun::top {

KeptErrors::KeptErrors() {
  if (::isatty(STDERR_FILENO) == 0) {
    return;
  }
  kept_.reset(::memfd_create("errors", MFD_CLOEXEC));
  terminal_.reset(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  if (kept_.valid() && terminal_.valid()) {
    ::dup2(kept_.get(), STDERR_FILENO);
    ShowErrorsInCrash(kept_.get(), terminal_.get());
  }
}

KeptErrors::~KeptErrors() {
  if (kept_.valid() && terminal_.valid()) {
    ShowErrorsInCrash(-1, -1);
    ::dup2(terminal_.get(), STDERR_FILENO);
    CopyErrors(kept_.get(), STDERR_FILENO);
  }
}

}  // namespace fsdprun::top
