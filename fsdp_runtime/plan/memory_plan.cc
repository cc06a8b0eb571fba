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

/// The slots of each unit that gives them back, in execution order.
std::vector<CountBySize> slots_by_unit(const std::vector<GroupMemory>& groups) {
  std::vector<CountBySize> units;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i == 0 || groups[i].unit != groups[i - 1].unit) {
      units.emplace_back();
    }
    const GroupMemory& group = groups[i];
    if (!group.is_windowed && !group.has_parameters_in_place && !group.stays_gathered) {
      units.back()[group.numel * group.compute_bytes] += 1;
    }
  }
  return units;
}

// The unit in use and the prefetched one need slots at the same time: the next in forward, the one
// before it in backward.
int64_t parameter_slot_bytes(const std::vector<GroupMemory>& groups) {
  int64_t bytes = 0;
  for (const GroupMemory& group : groups) {
    if (group.is_windowed || group.has_parameters_in_place) {
      continue;
    }
    const int64_t whole = group.numel * group.compute_bytes;
    bytes += group.stays_gathered ? whole : 0;
    bytes += group.part_ranks > 0 ? whole / group.part_ranks : 0;
  }
  CountBySize most;
  CountBySize previous;
  for (const CountBySize& unit : slots_by_unit(groups)) {
    for (const auto& [size, count] : unit) {
      const auto found = previous.find(size);
      most[size] = std::max(most[size], count + (found == previous.end() ? 0 : found->second));
    }
    previous = unit;
  }
  return bytes + bytes_of(most);
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
    if (group.is_windowed && group.compute_bytes != group.master_bytes) {
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
