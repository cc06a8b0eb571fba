#pragma once

// Connects descriptors 0 to 2 to /dev/null where they are closed when a program starts: the next
// descriptors would get these numbers, and a socket or a file would then receive what is written to
// standard output or error. Included by the files with a main(), and by nothing else.
//
// It runs before the constructors of shared libraries (.preinit_array), because some open
// descriptors of their own (gRPC), and so before the sanitizers, hence the bare system calls.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fsdprun {

__attribute__((no_sanitize("address", "thread", "undefined"))) inline void
OpenMissingStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::syscall(SYS_fcntl, fd, F_GETFD) < 0) {
      // Gets the lowest free number, `fd`. Not O_CLOEXEC: children need it as much.
      ::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR, 0);
    }
  }
}

[[gnu::section(".preinit_array"),
  gnu::used]] static void (*open_missing_standard_streams)() = &OpenMissingStandardStreams;

}  // namespace fsdprun
