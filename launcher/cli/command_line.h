#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// What the values `cpu`, `gpu`, `xpu` and `auto` resolve to on this machine.
struct MachineFacts {
  int usable_cpus = 1;
  int gpus = 0;  ///< NVIDIA or AMD.
  int intel_gpus = 0;
  int discrete_intel_gpus = 0;
};

/// Parses `args` (without the program's own name) over the PET_* variables of `environment`. Pure.
/// Errors: one line that names the option (or variable), its value and what was expected;
/// INVALID_ARGUMENT for the usage, OUT_OF_RANGE for values, as Note [Usage errors and value
/// errors].
absl::StatusOr<LaunchPlan> ParseCommandLine(CliProgram program,
                                            const std::vector<std::string>& args,
                                            const Environment& environment,
                                            const MachineFacts& machine);

}  // namespace fsdprun
