#pragma once

namespace fsdprun {

/// Whether main()'s arguments are `fsdprun chaos ...`. A program of that name is run as `./chaos`.
bool IsChaosCommand(int argc, char** argv);

/// main() of that command. Returns the exit code, and prints everything that the user needs. Call
/// on the main thread before other threads exist.
int RunChaosCommand(int argc, char** argv, char** environ_pointer);

}  // namespace fsdprun
