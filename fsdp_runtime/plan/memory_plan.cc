#include "fsdp_runtime/plan/memory_plan.h"

#include <algorithm>
#include <map>

namespace fsdp::plan {
namespace {

using CountBySize = std::map<int64_t, int64_t>;

int64_t shard_numel(const GroupMemory& group) { return group.numel / group.ranks; }

int64_t bytes_of(const CountBySize& slots) {
  int64_t bytes = 0;
  for (const auto& [size, count] : slots) {
    bytes += size * count;
  }
  return bytes;
}

bool copies_out(const GroupMemory& group) { return group.copied_numel > 0; }

/// Of the parameters when they are whole; 0 if that takes no memory.
int64_t whole_bytes(const GroupMemory& group) {
  if (group.has_parameters_in_place || (group.is_windowed && !copies_out(group))) {
    return 0;
  }
  return (copies_out(group) ? group.copied_numel : group.numel) * group.compute_bytes;
}

/// Slots that a unit gives back.
struct UnitSlots {
  CountBySize gathered;    // from when it is gathered
  CountBySize copied_out;  // from when it is used; what it has been gathered to is given back then
};

/// In execution order. `of_parts`: while those that keep parts are gathered from these, which are
/// parts of the parameters themselves.
std::vector<UnitSlots> slots_by_unit(const std::vector<GroupMemory>& groups, bool of_parts) {
  std::vector<UnitSlots> units;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i == 0 || groups[i].unit != groups[i - 1].unit) {
      units.emplace_back();
    }
    const GroupMemory& group = groups[i];
    const bool copies = copies_out(group) && !(of_parts && group.part_ranks > 0);
    if (copies && !group.is_windowed) {
      units.back().gathered[group.numel * group.compute_bytes] += 1;
    }
    if (whole_bytes(group) > 0 && !group.stays_gathered) {
      UnitSlots& unit = units.back();
      (copies ? unit.copied_out : unit.gathered)[whole_bytes(group)] += 1;
    }
  }
  return units;
}

CountBySize larger_counts(CountBySize a, const CountBySize& b) {
  for (const auto& [size, count] : b) {
    a[size] = std::max(a[size], count);
  }
  return a;
}

// The unit in use and the prefetched one need slots at the same time: the next in forward, the one
// before it in backward.
CountBySize most_slots(const std::vector<UnitSlots>& units) {
  CountBySize most;
  UnitSlots previous;
  for (const UnitSlots& unit : units) {
    CountBySize both = larger_counts(unit.copied_out, previous.copied_out);
    for (const CountBySize& gathered : {unit.gathered, previous.gathered}) {
      for (const auto& [size, count] : gathered) {
        both[size] += count;
      }
    }
    most = larger_counts(most, both);
    previous = unit;
  }
  return most;
}

int64_t parameter_slot_bytes(const std::vector<GroupMemory>& groups) {
  int64_t bytes = 0;
  for (const GroupMemory& group : groups) {
    const int64_t whole = whole_bytes(group);
    bytes += group.stays_gathered ? whole : 0;
    bytes += group.part_ranks > 0 ? whole / group.part_ranks : 0;
  }
  return bytes + bytes_of(larger_counts(most_slots(slots_by_unit(groups, /*of_parts=*/false)),
                                        most_slots(slots_by_unit(groups, /*of_parts=*/true))));
}

int64_t gradient_slot_bytes(const std::vector<GroupMemory>& groups) {
  CountBySize slots;
  CountBySize reduced_slots;
  for (const GroupMemory& group : groups) {
    if (!group.is_trainable || group.has_gradients_in_place) {
      continue;
    }
    int64_t& count = slots[group.numel * group.reduce_bytes];
    count = std::min(count + 1, kGradientSlotsPerSize);
    if (group.reduces_to_slot && group.ranks > 1) {
      int64_t& reduced = reduced_slots[shard_numel(group) * group.reduce_bytes];
      reduced = std::min(reduced + 1, kReducedSlotsPerSize);
    }
  }
  return bytes_of(slots) + bytes_of(reduced_slots);
}

}  // namespace

MemoryPlan plan_memory(const std::vector<GroupMemory>& groups) {
  MemoryPlan plan;
  for (const GroupMemory& group : groups) {
    const int64_t shard = shard_numel(group) * group.master_bytes;
    plan.shard_bytes += shard;
    if (group.is_windowed && !copies_out(group) && group.compute_bytes != group.master_bytes) {
      plan.shard_bytes += shard_numel(group) * group.compute_bytes;
    }
    if (group.is_trainable) {
      plan.gradient_bytes += shard;
      plan.gradient_bytes += group.keeps_row_sum ? shard_numel(group) * group.reduce_bytes : 0;
      plan.optimizer_bytes += 2 * shard;
    }
  }
  plan.parameter_slot_bytes = parameter_slot_bytes(groups);
  plan.gradient_slot_bytes = gradient_slot_bytes(groups);
  return plan;
}

}  // namespace fsdp::plan
