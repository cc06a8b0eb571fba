#pragma once

#include <cstdint>
#include <string>

namespace fsdprun {

/// Raises the soft limit of open descriptors of this process to the hard one, since a launcher
/// needs several for each worker and node. Returns the soft limit from before, which workers get
/// back: select() and programs that close every possible descriptor rely on it.
uint64_t RaiseDescriptorLimit();

/// Empty if this process may have descriptors for `count` of `what`, beside those of everything
/// else; otherwise a sentence that says how many it may have, and what to do.
std::string DescriptorShortage(uint64_t count, const std::string& what);

}  // namespace fsdprun
