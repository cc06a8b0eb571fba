#pragma once

#include <c10/core/Device.h>

#include <string>

namespace fsdprun::worker {

/// From now on, of the whole process: LibTorch takes only algorithms that give the same bits each
/// time, or throws where there is none, as Python's torch.use_deterministic_algorithms(True). Not
/// that fresh memory is filled, which is for finding mistakes. `cublas_workspace`: the variable
/// CUBLAS_WORKSPACE_CONFIG, "" if it is not set: cuBLAS reads it when it is loaded, so it must have
/// been set before. Errors: ConfigError on a GPU with another one than cuBLAS is deterministic
/// with.
void UseDeterministicAlgorithms(c10::Device device, const std::string& cublas_workspace);

}  // namespace fsdprun::worker
