#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/cli/command_line.h"

namespace fsdprun {

/// The secret of this user, and where it is: a file of random text, mode 0600, that is made at its
/// first use and then stays. Nodes that share a home directory have it in common, so a job over
/// several of them needs no other token.
struct UserSecret {
  std::string value;
  std::string path;
  /// There was none, and it was made now, by this process or another.
  bool is_new = false;
};

/// Reads `$XDG_CONFIG_HOME/fsdprun/secret` or `$HOME/.config/fsdprun/secret`; makes it if it is not
/// there. Launchers that make it at the same moment, on several nodes, agree. Errors:
/// NOT_FOUND if there is no place for it (no home directory, or one that cannot be written),
/// PERMISSION_DENIED if it is not private, with what to do.
absl::StatusOr<UserSecret> LoadUserSecret(const Environment& environment);

}  // namespace fsdprun
