#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

struct ClientResult {
  /// 128 + n for signal n.
  int code = 0;
  /// Of standard output; standard error is this program's.
  std::string output;
};

/// Runs one of Slurm's client programs to its end, with `input` as standard input. Errors:
/// NOT_FOUND if there is no such program on PATH, INTERNAL if it cannot be started.
absl::StatusOr<ClientResult> RunClient(const std::vector<std::string>& command,
                                       const Environment& environment, const std::string& input);

}  // namespace fsdprun
