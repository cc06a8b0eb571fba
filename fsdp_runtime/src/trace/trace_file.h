#pragma once

#include <cstdint>

namespace fsdp::trace {

/// Of FSDP_TRACE_DIR, if that is set and no trace is running; it ends with the process. Errors: as
/// start_trace().
void start_from_environment(int64_t rank);

}  // namespace fsdp::trace
