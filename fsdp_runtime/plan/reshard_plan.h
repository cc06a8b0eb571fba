#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::plan {

/// Which units stay gathered from their forward to their backward, so that the gathered parameters
/// never take more than `budget` bytes at once. `bytes`: of each unit's gathered parameters, in the
/// order of forward.
///
/// Kept are the units that run last, which is for the shortest time, and of those before them
/// whatever still fits. Beside what is kept there is always room for the unit that computes and the
/// one that is prefetched; so nothing is kept if these are more than the budget. Pure.
std::vector<bool> units_to_keep(const std::vector<int64_t>& bytes, int64_t budget);

/// The most that gathered parameters take at once in forward and backward, with one unit
/// prefetched. Pure.
int64_t most_gathered(const std::vector<int64_t>& bytes, const std::vector<bool>& kept);

}  // namespace fsdp::plan
