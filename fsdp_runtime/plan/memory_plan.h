#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::plan {

/// Slots of unsharded gradients per size: one that backward writes and one that a reduce-scatter
/// reads. In a row of one rank, which has none, the all-reduce reads it.
inline constexpr int64_t kGradientSlotsPerSize = 2;
/// Slots of reduced gradients per size, where these are not at once the gradient: one that a
/// reduce-scatter writes, one that an all-reduce over copies works on, and one that waits for that.
inline constexpr int64_t kReducedSlotsPerSize = 3;

/// Input of plan_memory for one group. Groups are given in execution order.
struct GroupMemory {
  int64_t unit = 0;             // groups of one unit follow each other, and are gathered together
  int64_t numel = 0;            // of the whole group as it is gathered, padding included
  int64_t copied_numel = 0;     // of the memory that it is copied out to; 0: it is not
  int64_t ranks = 1;            // that divide the group
  int64_t master_bytes = 4;     // per element of the shard
  int64_t compute_bytes = 4;    // per element of the gathered parameters
  int64_t reduce_bytes = 4;     // per element of the gradients that are reduced
  bool stays_gathered = false;  // between forward and backward, or while units inside it run
  bool is_windowed = false;     // peers read the shard, or a copy of it in compute_bytes, in place
  int64_t part_ranks = 0;       // that keep a part each from forward to backward; 0: of nothing
  // One rank alone, without casts: needs no memory beside the shard, or the shard's gradient.
  bool has_parameters_in_place = false;
  bool has_gradients_in_place = false;
  bool is_trainable = true;
  // What reduce-scatters give is cast, added to a gradient, or kept for an all-reduce over copies.
  bool reduces_to_slot = false;
  bool keeps_row_sum = false;  // beside the gradient
};

/// Bytes per rank, without activations and other allocations of the model. Memory that ranks share
/// counts for the one that it is a part of.
struct MemoryPlan {
  int64_t shard_bytes = 0;           // with what peers read, where that is a copy
  int64_t gradient_bytes = 0;        // of the shards' gradients and the sums of rows
  int64_t optimizer_bytes = 0;       // two states like the shard, as AdamW keeps
  int64_t parameter_slot_bytes = 0;  // arena
  int64_t gradient_slot_bytes = 0;   // arena
  int64_t peak_bytes() const {
    return shard_bytes + gradient_bytes + optimizer_bytes + parameter_slot_bytes +
           gradient_slot_bytes;
  }
};

/// Memory for training a model with one group prefetched and a bounded number of slots per size:
/// slots are shared by groups of one size, and each group that stays unsharded has its own. Assumes
/// that every micro batch's gradients are reduced (no accumulation of unsharded gradients).
MemoryPlan plan_memory(const std::vector<GroupMemory>& groups);

}  // namespace fsdp::plan
