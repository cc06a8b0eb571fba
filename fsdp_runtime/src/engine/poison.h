#pragma once

#include <cstdint>

namespace fsdp {

/// Address of `bytes` bytes of reserved CPU memory that can be neither read nor written (guard
/// pages). Resharded parameters point there, so that accessing one outside its unit's forward or
/// backward faults at the offending instruction. nullptr if the system refuses the reservation.
/// Costs address space, no memory. Never unmapped. Thread: any.
void* poison_address(int64_t bytes);

}  // namespace fsdp
