#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// What a process has used, as the kernel counts it.
struct ProcessUse {
  /// R, S, D, T, t, Z, ...
  char state = '?';
  int64_t cpu_ns = 0;
  int64_t rss_bytes = 0;
};

/// Parses the text of /proc/<pid>/stat; none if it is not one. Pure.
std::optional<ProcessUse> ParseProcessUse(absl::string_view text, int64_t ns_per_tick,
                                          int64_t page_bytes);

/// One process, also when its pid is somebody else's. Thread: one at a time.
class ProcessGauge {
 public:
  explicit ProcessGauge(pid_t pid);

  pid_t pid() const { return pid_; }
  /// None: it has ended and was reaped.
  std::optional<ProcessUse> Read() const;

 private:
  pid_t pid_;
  UniqueFd stat_;
};

/// The process's share of the memory that it uses; 0: not known. Takes milliseconds of a large
/// process, and longer while that maps memory.
int64_t ReadPssBytes(pid_t pid);

/// Of the text of /proc/<pid>/smaps_rollup. Pure.
int64_t ParsePssBytes(absl::string_view text);

}  // namespace fsdprun
