#pragma once

#include <c10/core/DeviceType.h>
#include <fsdp/export.h>

#include <cstdint>

namespace fsdp {

/// On what a process trains that has not said it, if it can use `gpus` GPUs. Errors: TORCH_CHECK if
/// there are some, but none for `local_rank`: its neighbours would train on theirs. Pure.
FSDP_API c10::DeviceType choose_device_type(int64_t gpus, int64_t local_rank);

}  // namespace fsdp
