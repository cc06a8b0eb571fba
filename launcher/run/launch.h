#pragma once

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// main() of both programs: answers --help, --version and --dry-run, else runs the job, or one node
/// of it, from start to end. Returns the exit code; prints everything an operator needs. Call on
/// the main thread before other threads exist.
int RunProgram(CliProgram program, int argc, char** argv, char** environ_pointer);

}  // namespace fsdprun
