#pragma once

#include <string>

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// Help grouped by task, with defaults, environment variables, signals and exit codes.
std::string HelpText(CliProgram program);

}  // namespace fsdprun
