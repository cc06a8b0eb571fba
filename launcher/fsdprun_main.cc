#include <unistd.h>

#include "launcher/run/launch.h"

int main(int argc, char** argv) {
  return fsdprun::RunProgram(fsdprun::CliProgram::kFsdprun, argc, argv, environ);
}
