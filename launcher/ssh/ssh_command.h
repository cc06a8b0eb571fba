#pragma once

// Note [What ssh is told]
// Whoever is on one of the two machines reads the words of any process there, so they have nothing
// of the job: ssh is told to start this program on the host with one word, kSshNodeOption. It says
// what it is (node_hello.h), and only then is it sent, on its standard input, what it is to do:
// command line, variables, folder and the job's token. That also leaves nothing to be quoted for
// the login shell there but the path of the program.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// What a launcher starts a node's part with; no option of users.
inline constexpr absl::string_view kSshNodeOption = "--ssh-node";

/// As one word of a POSIX shell, which is the same word in csh and, but for backslashes, in fish.
/// Pure.
std::string LoginShellWord(absl::string_view text);

/// The command that starts a node's part at `host`. `program`: the one there. ssh takes the first
/// of several values of an option, so the user's words come before ours. Pure.
std::vector<std::string> SshCommand(const SshOptions& ssh, const HostPort& host,
                                    const std::string& program);

/// ssh's own: the launcher's, without the token. Pure.
Environment SshEnvironment(Environment launcher);

}  // namespace fsdprun
