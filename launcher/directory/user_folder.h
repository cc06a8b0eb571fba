#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// The folders down to this user's own one for fsdprun, outermost first:
/// `$XDG_CONFIG_HOME/fsdprun`, or `$HOME/.config/fsdprun`. Empty without a home directory. A
/// relative path is none, by the XDG specification.
std::vector<std::string> UserFolders(const Environment& environment);

/// Makes those that are not there, mode 0700. Errors: NOT_FOUND with the folder and why.
absl::Status MakeFolders(const std::vector<std::string>& folders);

}  // namespace fsdprun
