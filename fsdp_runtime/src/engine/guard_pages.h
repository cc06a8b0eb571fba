#pragma once

#include <cstdint>

namespace fsdp {

/// Address of `bytes` bytes of reserved CPU memory that can be neither read nor written: what
/// parameters and gradients that are not gathered view. nullptr if the system refuses the
/// reservation. Costs address space, no memory. Never unmapped. Thread: any.
///
/// Whoever touches it gets SIGSEGV. Before the handler of that signal that was there at the first
/// call, or the default action, has its turn, a line on stderr says what was touched and what to do
/// instead.
void* guarded_address(int64_t bytes);

}  // namespace fsdp
