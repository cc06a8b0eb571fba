#pragma once

#include <map>
#include <string>

#include "formats/accelerate/accelerate_config.h"

namespace fsdprun {

/// The variables from which a script's Accelerator takes the settings: those that `accelerate
/// launch` sets, with the defaults of its options for what the file does not have. Not among them:
/// OMP_NUM_THREADS, which depends on the machine, and the switches of NCCL that it sets for cards
/// of the RTX 4000 series. Pure.
std::map<std::string, std::string> AccelerateEnvironment(const AccelerateConfig& config);

/// Whether the file is about one process, or about processes that somebody else starts (mpirun):
/// those get other variables than the workers of torchrun.
bool IsSimpleLaunch(const AccelerateConfig& config);

}  // namespace fsdprun
