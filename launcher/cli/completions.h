#pragma once

#include <string>

#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// The script by which a shell completes the program's options and their values; after PROGRAM it
/// offers files.
std::string CompletionScript(CliProgram program, Shell shell);

}  // namespace fsdprun
