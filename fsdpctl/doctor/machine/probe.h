#pragma once

// Note [What may hang]
// A file system whose server is gone, a driver that is stuck and an interpreter on either may hold
// up whoever asks for ever, and not even be interrupted. So they are asked by a child process,
// which is killed, with what it has started, and not waited for, when it has not answered in time:
// what hangs in the kernel does not die of that. It ends with this process at the latest.

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/cli/option_table.h"

namespace fsdprun::doctor {

/// What `look` returns in a child process. No other thread may run here: the child is a copy of
/// this one. Errors: DEADLINE_EXCEEDED after `patience`; UNAVAILABLE if the child crashed or cannot
/// be made.
absl::StatusOr<std::string> RunProbe(const std::function<std::string()>& look, Duration patience);

/// The same for plain values, which pass as they lie in memory.
template <typename T>
absl::StatusOr<T> ProbeFor(const std::function<T()>& look, Duration patience) {
  static_assert(std::is_trivially_copyable_v<T>);
  const absl::StatusOr<std::string> bytes = RunProbe(
      [&look] {
        const T value = look();
        return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
      },
      patience);
  if (!bytes.ok()) {
    return bytes.status();
  }
  T value;
  if (bytes->size() != sizeof(value)) {
    return absl::UnavailableError("the process that looked has crashed");
  }
  bytes->copy(reinterpret_cast<char*>(&value), sizeof(value));
  return value;
}

/// Standard output of a program that is started by its path, without its errors; its input is
/// empty. Errors: as RunProbe(), and UNAVAILABLE if it cannot be started or does not end with 0.
absl::StatusOr<std::string> AskProgram(const std::vector<std::string>& words,
                                       const Environment& environment, Duration patience);

}  // namespace fsdprun::doctor
