#pragma once

#include <string>

#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// The script by which a shell completes the program's options and their values; after PROGRAM it
/// offers files.
std::string CompletionScript(CliProgram program, Shell shell);

/// The same for fsdpctl: the names of its commands, and for each command what that takes.
std::string ControlCompletionScript(Shell shell);

}  // namespace fsdprun
