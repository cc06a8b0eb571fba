#pragma once

#include <chrono>

#include "base/mono_time.h"
#include "fsdpctl/doctor/checks/facts.h"

namespace fsdprun::doctor {

/// Asks the NVIDIA driver through libnvidia-ml.so.1, if that is there, in a child process. Fills
/// what `facts` has of NVML.
void AskNvml(GpuFacts* facts, Duration patience = std::chrono::seconds(15));

/// What libnccl.so.2 on the library path says of itself; 0: there is none. In a child process,
/// since its initialisers are not ours.
int NcclVersion();

}  // namespace fsdprun::doctor
