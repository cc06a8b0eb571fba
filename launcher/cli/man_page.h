#pragma once

#include <string>

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// The manual page of section 1, in troff's man macros: what the help text says.
std::string ManPage(CliProgram program);

}  // namespace fsdprun
