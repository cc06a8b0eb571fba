#pragma once

#include <fsdp/export.h>

#include <cstdint>

namespace fsdp::trace {

/// Of FSDP_TRACE_DIR, if that is set and no trace is running; it ends with the process. Thread:
/// any. Errors: as start_trace(), except for one that runs.
FSDP_API void start_from_environment(int64_t rank);

}  // namespace fsdp::trace
