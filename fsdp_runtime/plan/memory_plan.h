#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::plan {

/// Gradient slots per size: one that backward writes and one that a reduce-scatter reads.
inline constexpr int64_t kGradientSlotsPerSize = 2;

/// Input of plan_memory for one group. Groups are given in execution order.
struct GroupMemory {
  int64_t numel = 0;            // of the whole group, padding included
  int64_t master_bytes = 4;     // per element of the shard
  int64_t compute_bytes = 4;    // per element of the gathered parameters
  int64_t reduce_bytes = 4;     // per element of the gradients that are reduced
  bool stays_gathered = false;  // between forward and backward, or while units inside it run
  bool is_trainable = true;
};

/// Bytes per rank, without activations and other allocations of the model.
struct MemoryPlan {
  int64_t shard_bytes = 0;
  int64_t gradient_bytes = 0;        // of the shards' gradients
  int64_t optimizer_bytes = 0;       // two states like the shard, as AdamW keeps
  int64_t parameter_slot_bytes = 0;  // arena
  int64_t gradient_slot_bytes = 0;   // arena
  int64_t peak_bytes() const {
    return shard_bytes + gradient_bytes + optimizer_bytes + parameter_slot_bytes +
           gradient_slot_bytes;
  }
};

/// Memory for training a model with one group prefetched and at most two gradient slots per size:
/// slots are shared by groups of one size, and each group that stays unsharded has its own. Assumes
/// that every micro batch's gradients are reduced (no accumulation of unsharded gradients).
MemoryPlan plan_memory(const std::vector<GroupMemory>& groups, int64_t ranks);

}  // namespace fsdp::plan
