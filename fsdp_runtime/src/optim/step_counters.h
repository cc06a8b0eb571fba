#pragma once

#include <fsdp/export.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp {

/// Parameters that have been updated equally often share a counter, so that a step counts once, on
/// the device, for all of them. Before a step in which only some of those that share one take part,
/// these go on with a copy of it: the number of updates itself is not looked at.
///
/// `counter_of`: by parameter, its counter. `takes_part`: by parameter, 1 if it is updated.
/// `counters`: how many there are. Renumbers `counter_of`; returns of each new counter, which are
/// numbered from `counters` on, which one it is a copy of. Pure.
FSDP_API std::vector<size_t> split_counters(std::vector<size_t>& counter_of,
                                            const std::vector<uint8_t>& takes_part,
                                            size_t counters);

}  // namespace fsdp
