#pragma once

// Invariants. They stay on in release builds: a broken invariant ends the process with file, line
// and condition. Never on input from outside the process; that is a Status.

namespace fsdprun::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const char* why);
}

#define FSDPRUN_CHECK(condition, why)                                        \
  do {                                                                       \
    if (!(condition)) [[unlikely]] {                                         \
      ::fsdprun::internal::CheckFailed(__FILE__, __LINE__, #condition, why); \
    }                                                                        \
  } while (false)
