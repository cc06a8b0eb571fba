#pragma once

#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// Runs a job, or one node of it, from start to end. Returns the exit code; prints everything an
/// operator needs. Call on the main thread before other threads exist.
int Launch(CliProgram program, const LaunchPlan& plan, const Environment& environment);

/// main() of both programs: parses, answers --help, --version and --dry-run, else Launch().
int RunProgram(CliProgram program, int argc, char** argv, char** environ_pointer);

}  // namespace fsdprun
