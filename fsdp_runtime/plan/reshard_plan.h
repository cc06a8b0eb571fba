#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::plan {

/// A unit whose parameters are gathered while it runs.
struct UnitToGather {
  int64_t bytes = 0;                            // of its parameters, while it runs
  std::optional<size_t> around = std::nullopt;  // the unit that it runs in, which comes before it
  // Of those that are copied out of what has been gathered when the unit begins to run: what they
  // have of `bytes`, and what they are copied out of, which is there until then.
  int64_t copied = 0;
  int64_t copied_from = 0;

  /// From when it is prefetched.
  int64_t bytes_in_flight() const { return bytes - copied + copied_from; }
};

/// Which units stay gathered from their forward to their backward, so that the gathered parameters
/// never take more than `budget` bytes at once. `units`: in the order in which their forwards
/// begin.
///
/// Kept are the units that run last, which is for the shortest time, and of those before them
/// whatever still fits. Beside what is kept there is always room for the unit that computes, those
/// around it, and the one that is prefetched; so nothing is kept if these are more than the budget.
/// Pure.
std::vector<bool> units_to_keep(const std::vector<UnitToGather>& units, int64_t budget);

/// The most that gathered parameters take at once in forward and backward, with one unit
/// prefetched. A unit is gathered while it runs, and so while units run in it. The next one is in
/// flight when its parameters are copied out. Pure.
int64_t most_gathered(const std::vector<UnitToGather>& units, const std::vector<bool>& kept);

}  // namespace fsdp::plan
