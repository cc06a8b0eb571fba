#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/accelerate/accelerate_config.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

// Note [A configuration of accelerate]
// --accelerate-config FILE stands for the options and variables that `accelerate launch
// --config_file FILE` gives to torchrun and to the workers. The options are put in front of those
// of the command line, and the variables into the launcher's environment, before anything else
// looks at either: so whatever a command line or an environment reaches (srun's tasks, daemons,
// hosts over ssh) gets them, too. What the command line says itself counts, and before the file so
// does nothing else, as with accelerate: a PET_ variable does not.

/// The file that the command line names; empty: none, or a text is asked for instead of a job.
/// Pure. Errors: as OptionsOfArguments().
absl::StatusOr<std::string> AccelerateFile(CliProgram program,
                                           const std::vector<std::string>& args);

/// What a start knows besides.
struct AccelerateSurroundings {
  /// Of this machine, two threads of one counting once; 0: not known.
  int physical_cores = 0;
  /// Whether a port can be listened at here.
  std::function<bool(uint16_t)> is_port_free;
};

struct AccelerateLaunch {
  std::vector<std::string> options;  // "--nnodes=2"
  Environment variables;
  std::vector<std::string> warnings;
};

/// What the file adds to the command line. Pure but for `surroundings`. Errors: INVALID_ARGUMENT
/// naming file, line, key and value.
absl::StatusOr<AccelerateLaunch> PlanAccelerate(CliProgram program,
                                                const std::vector<std::string>& args,
                                                const AccelerateConfig& config,
                                                const Environment& environment,
                                                const AccelerateSurroundings& surroundings);

}  // namespace fsdprun
