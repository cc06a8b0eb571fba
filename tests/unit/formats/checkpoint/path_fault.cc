#include "tests/unit/formats/checkpoint/path_fault.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdarg>
#include <string_view>

namespace fsdprun::checkpoint {
namespace {

struct FaultOfAKind {
  std::atomic<const char*> part{nullptr};
  std::atomic<int> error{0};
  std::atomic<int> times{0};
};

FaultOfAKind path_faults[2];

}  // namespace

PathFault::PathFault(Kind kind, const char* part, int error, int times) : kind_(kind) {
  path_faults[kind].times = times;
  path_faults[kind].error = error;
  path_faults[kind].part = part;
}

PathFault::~PathFault() { path_faults[kind_].part = nullptr; }

int PathFault::ErrorOf(Kind kind, const char* path) {
  const char* part = path_faults[kind].part;
  const bool is_concerned =
      part != nullptr && std::string_view(path).find(part) != std::string_view::npos;
  return is_concerned && path_faults[kind].times-- > 0 ? path_faults[kind].error.load() : 0;
}

}  // namespace fsdprun::checkpoint

// In the place of libc's.

extern "C" int stat(const char* path, struct stat* out) noexcept {
  using fsdprun::checkpoint::PathFault;
  if (const int error = PathFault::ErrorOf(PathFault::kLook, path); error != 0) {
    errno = error;
    return -1;
  }
  return fstatat(AT_FDCWD, path, out, 0);
}

extern "C" int open(const char* path, int flags, ...) {
  using fsdprun::checkpoint::PathFault;
  if (const int error = PathFault::ErrorOf(PathFault::kOpen, path); error != 0) {
    errno = error;
    return -1;
  }
  va_list rest;
  va_start(rest, flags);
  const bool has_mode = (flags & (O_CREAT | O_TMPFILE)) != 0;
  const mode_t mode = has_mode ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return openat(AT_FDCWD, path, flags, mode);
}
