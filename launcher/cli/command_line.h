#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/flag_table.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// What the values `cpu`, `gpu` and `auto` resolve to on this machine.
struct MachineFacts {
  int usable_cpus = 1;
  int gpus = 0;
};

/// Parses `args` (without the program's own name) over the PET_* variables of `environment`. Pure.
/// Errors: INVALID_ARGUMENT with one line that names the flag (or variable), its value and what was
/// expected.
absl::StatusOr<LaunchPlan> ParseCommandLine(CliProgram program,
                                            const std::vector<std::string>& args,
                                            const Environment& environment,
                                            const MachineFacts& machine);

/// `host`, `host:port`, `[v6]`, `[v6]:port`; a missing port becomes `default_port`.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, uint16_t default_port);

}  // namespace fsdprun
