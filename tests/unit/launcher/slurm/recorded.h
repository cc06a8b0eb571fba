#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// The variables that Slurm 22.05.8 has set for a process of this kind; tests/slurm holds them
/// against a running one.
inline Environment Recorded(const std::string& kind) {
  const std::string path = std::string(std::getenv("SLURM_ENVIRONMENTS")) + "/" + kind;
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  Environment environment;
  for (std::string line; std::getline(file, line);) {
    const size_t end = line.find('=');
    environment[line.substr(0, end)] = line.substr(end + 1);
  }
  return environment;
}

}  // namespace fsdprun
