#include "fsdp_runtime/plan/memory_plan.h"

#include <algorithm>
#include <map>

namespace fsdp::plan {
namespace {

// The group in use and the prefetched one need a slot each: two slots of a size only where
// consecutive groups have that size.
int64_t parameter_slot_bytes(const std::vector<GroupMemory>& groups) {
  int64_t bytes = 0;
  std::map<int64_t, int64_t> slots;
  int64_t previous = -1;
  for (const GroupMemory& group : groups) {
    const int64_t size = group.numel * group.compute_bytes;
    if (group.stays_gathered) {
      bytes += size;
      continue;
    }
    slots[size] = std::max(slots[size], int64_t{1} + (size == previous ? 1 : 0));
    previous = size;
  }
  for (const auto& [size, count] : slots) {
    bytes += size * count;
  }
  return bytes;
}

int64_t gradient_slot_bytes(const std::vector<GroupMemory>& groups) {
  std::map<int64_t, int64_t> slots;
  for (const GroupMemory& group : groups) {
    if (group.is_trainable) {
      int64_t& count = slots[group.numel * group.reduce_bytes];
      count = std::min(count + 1, kGradientSlotsPerSize);
    }
  }
  int64_t bytes = 0;
  for (const auto& [size, count] : slots) {
    bytes += size * count;
  }
  return bytes;
}

}  // namespace

MemoryPlan plan_memory(const std::vector<GroupMemory>& groups, int64_t ranks) {
  MemoryPlan plan;
  for (const GroupMemory& group : groups) {
    const int64_t shard = group.numel / ranks * group.master_bytes;
    plan.shard_bytes += shard;
    if (group.is_trainable) {
      plan.gradient_bytes += shard;
      plan.optimizer_bytes += 2 * shard;
    }
  }
  plan.parameter_slot_bytes = parameter_slot_bytes(groups);
  plan.gradient_slot_bytes = gradient_slot_bytes(groups);
  return plan;
}

}  // namespace fsdp::plan
