#pragma once

#include <string>

#include "absl/status/status.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// Where this user's processes on this machine leave what is for no other user:
/// `$XDG_RUNTIME_DIR/fsdprun`, or `/tmp/fsdprun-<user's number>`. Pure.
std::string RuntimeFolder(const Environment& environment);

/// Makes the folder if it is not there, mode 0700. It must be a directory, not a link to one, of
/// this user and closed to everybody else. Errors: PERMISSION_DENIED, with what is wrong.
absl::Status MakePrivateFolder(const std::string& path);

}  // namespace fsdprun
