#pragma once

// System calls for a process that shares its parent's memory, and so the parent's errno.

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace fsdprun::keeper {

// A sanitizer keeps its books in the memory of the thread that runs, which such a process would
// share, too.
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(FSDPRUN_SANITIZED)
inline constexpr bool kHasBareCalls = true;
#else
inline constexpr bool kHasBareCalls = false;
#endif

/// The kernel's answer; an error is negative. Writes nothing to memory, but with kHasBareCalls
/// false errno.
inline long BareCall(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
#if defined(__x86_64__) && !defined(FSDPRUN_SANITIZED)
  long result = number;
  register long fourth asm("r10") = d;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__) && !defined(FSDPRUN_SANITIZED)
  register long name asm("x8") = number;
  register long result asm("x0") = a;
  register long second asm("x1") = b;
  register long third asm("x2") = c;
  register long fourth asm("x3") = d;
  asm volatile("svc 0" : "+r"(result) : "r"(name), "r"(second), "r"(third), "r"(fourth) : "memory");
  return result;
#else
  const long result = ::syscall(number, a, b, c, d);
  return result < 0 ? -errno : result;
#endif
}

/// A pointer as an argument.
inline long Word(const void* pointer) { return reinterpret_cast<long>(pointer); }

}  // namespace fsdprun::keeper
