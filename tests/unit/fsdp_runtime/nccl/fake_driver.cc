// What libfsdp takes for the sign of an NVIDIA driver is there: a program's own functions come
// ahead of the C library's.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

extern "C" __attribute__((visibility("default"))) int access(const char* path, int mode) noexcept {
  if (std::strcmp(path, "/dev/nvidiactl") == 0) {
    return 0;
  }
  return static_cast<int>(::syscall(SYS_faccessat, AT_FDCWD, path, mode));
}
