#include <unistd.h>

#include "launcher/run/launch.h"
#include "proto/standard_streams.h"

int main(int argc, char** argv) {
  return fsdprun::RunProgram(fsdprun::CliProgram::kFsdpAgent, argc, argv, environ);
}
