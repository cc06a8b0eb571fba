#pragma once

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun {

// By which functions shells complete the options of a program, or of a command of one, and their
// values.

/// As they are typed: `fsdprun`; `fsdpctl`, `slurm`, `submit`.
std::vector<std::string> ProgramWords(CliProgram program);
/// As part of a function's name.
std::string ProgramIdentifier(CliProgram program);

/// `_IDENTIFIER`, which reads COMP_LINE.
std::string BashFunction(CliProgram program);
/// `_IDENTIFIER`, which reads what follows the first of `words`.
std::string ZshFunction(CliProgram program);
/// With the lines that use it.
std::string FishFunction(CliProgram program);

}  // namespace fsdprun
