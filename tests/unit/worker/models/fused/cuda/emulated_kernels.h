#pragma once

#include <string>

#include "tests/unit/worker/models/fused/cuda/emulation_schedule.h"
#include "worker/models/fused/cuda/libraries.h"

namespace fsdprun::worker {

/// Runs a kernel of one of the .cu files, compiled as C++, as KernelLauncher::Launch() would.
/// Returns the assertion that failed, or "". Throws std::out_of_range if `source` has no such
/// kernel, and std::logic_error as emulation::Run() does.
std::string RunEmulated(const std::string& source, const std::string& kernel,
                        const fused::LaunchShape& shape, void** arguments,
                        const emulation::Schedule& schedule);

}  // namespace fsdprun::worker
