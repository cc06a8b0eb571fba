#pragma once

#include <cstdint>

namespace fsdprun {

/// Raises the soft limit of open descriptors of this process to the hard one, since a launcher
/// needs several for each worker and node. Returns the soft limit from before, which workers get
/// back: select() and programs that close every possible descriptor rely on it.
uint64_t RaiseDescriptorLimit();

}  // namespace fsdprun
