#pragma once

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// `fsdprun --ssh-node`, which only launchers start, through ssh: reads on standard input what a
/// node's part of a job is (node_hello.h), and runs it to its end, or to that of the input. Call on
/// the main thread before other threads exist.
int RunSshNode(const Environment& own_environment);

}  // namespace fsdprun
