#pragma once

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// As exec takes it; valid as long as `texts`.
std::vector<char*> ExecPointers(const std::vector<std::string>& texts);
/// `NAME=value` each.
std::vector<std::string> ExecVariables(const Environment& environment);

}  // namespace fsdprun
