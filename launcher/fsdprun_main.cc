#include <unistd.h>

#include "launcher/chaos/run/chaos_command.h"
#include "launcher/run/launch.h"
#include "proto/standard_streams.h"

int main(int argc, char** argv) {
  if (fsdprun::IsChaosCommand(argc, argv)) {
    return fsdprun::RunChaosCommand(argc, argv, environ);
  }
  return fsdprun::RunProgram(fsdprun::CliProgram::kFsdprun, argc, argv, environ);
}
