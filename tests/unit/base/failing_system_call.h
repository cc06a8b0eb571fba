#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdprun {

/// A system call that is not carried out, for what no file system and no process of a test does.
struct FailingSystemCall {
  long number = 0;
  /// 0: it says that it has been done.
  int error = 0;
  /// Only if the argument of that number has one of these bits; 0: always.
  uint32_t bits = 0;
  uint32_t argument = 0;
};

/// That is what it does from now on in this thread, and in all that this thread starts. False where
/// the kernel takes no filter of system calls.
inline bool FailFromNowOn(const FailingSystemCall& call) {
  constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS;
  constexpr uint16_t kReturn = BPF_RET | BPF_K;
  const bool has_bits = call.bits != 0;
  const auto to_end = static_cast<uint8_t>(has_bits ? 3 : 1);
  std::vector<sock_filter> program = {
      {kLoad, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, to_end, static_cast<uint32_t>(call.number)}};
  if (has_bits) {  // Of the lower half, on a little-endian machine.
    program.push_back(
        {kLoad, 0, 0,
         static_cast<uint32_t>(offsetof(seccomp_data, args) + call.argument * sizeof(uint64_t))});
    program.push_back({BPF_JMP | BPF_JSET | BPF_K, 0, 1, call.bits});
  }
  program.push_back({kReturn, 0, 0, SECCOMP_RET_ERRNO | static_cast<uint32_t>(call.error)});
  program.push_back({kReturn, 0, 0, SECCOMP_RET_ALLOW});
  const sock_fprog filter{.len = static_cast<uint16_t>(program.size()), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace fsdprun
