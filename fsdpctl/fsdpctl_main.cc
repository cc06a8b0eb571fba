#include <unistd.h>

#include "fsdpctl/run/commands.h"
#include "proto/standard_streams.h"

int main(int argc, char** argv) { return fsdprun::RunControl(argc, argv, environ); }
