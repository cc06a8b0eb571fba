#pragma once

/// @file
/// What units have moved and allocated, and how long ranks have waited for each other.

#include <fsdp/export.h>

#include <chrono>
#include <cstdint>

namespace fsdp {

class FSDPModule;

/// @addtogroup observe
/// @{

/// Counters of the units under one root since they were sharded. `slot_allocations` does not change
/// after the second training step, the first that prefetches in forward: the steady state allocates
/// nothing.
struct FSDP_API RuntimeCounters {
  int64_t slot_allocations = 0;  ///< Arena slots ever allocated
  int64_t slot_bytes = 0;        ///< Bytes of all arena slots
  int64_t gathers = 0;           ///< All-gathers issued
  int64_t gathered_bytes = 0;    ///< Bytes of their outputs
  int64_t reductions = 0;        ///< Reductions issued
  int64_t reduced_bytes = 0;     ///< Bytes of their inputs
  int64_t moved_gradients = 0;   ///< Copied or added to where they are reduced; fsdp::linear
                                 ///< computes a weight's first gradient there instead.
};

/// The counters shared by all units that have the same root as `unit`. Local, does not block.
/// Thread: the rank's. Errors: TORCH_CHECK on an empty handle.
FSDP_API RuntimeCounters runtime_counters(const FSDPModule& unit);

/// For how long this process's threads, but those of the groups themselves, have been blocked in
/// collectives since its start: time that was lost to peers and to the transport. On a device
/// collectives block the host only in agreements and barriers, so its kernels' waits for each other
/// are not in it. Thread: any.
FSDP_API std::chrono::nanoseconds collective_wait_time();

/// @}

}  // namespace fsdp
