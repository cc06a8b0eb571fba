#pragma once

#include <cstdint>

namespace fsdp {

/// An address at which `bytes` bytes of CPU memory are reserved and may be neither read nor
/// written: what a resharded parameter points to, so that touching it outside its unit's forward or
/// backward stops the process at the guilty instruction. nullptr if the system refuses the
/// reservation. Costs address space, no memory. The reservation lives as long as the process.
/// Thread: any.
void* poison_address(int64_t bytes);

}  // namespace fsdp
