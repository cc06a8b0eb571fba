#pragma once

#include <cstdint>
#include <vector>

#include "fsdp_runtime/plan/memory_plan.h"
#include "worker/config/config.h"
#include "worker/estimate/estimated_weights.h"

namespace fsdprun::worker {

/// How the ranks of a run are arranged, and what they compute with.
struct Arrangement {
  int64_t ranks = 1;
  /// That divide a model, and how many copies of it there are: their product is `ranks`.
  int64_t shard_ranks = 1;
  int64_t copies = 1;
  /// parallel.backend shm and gloo are of CPUs; auto is taken for nccl.
  bool is_gpu = true;
  /// Bytes of which shards are multiples that ranks of a host read in place of each other (shm); 0:
  /// they do not.
  int64_t window_alignment = 0;
};

/// Errors: ConfigError if parallel.dp_replicate does not divide `ranks`. Pure.
Arrangement ArrangementOf(const TrainConfig::Parallel& parallel, int64_t ranks);

/// Parameters that are gathered and reduced together: of one unit, all trained or none. A block of
/// the model is a unit, and what is outside of the blocks is one.
struct WeightGroup {
  /// 0: what is outside of the blocks.
  int64_t unit = 0;
  /// What they are in the list that the groups were made of.
  std::vector<size_t> weights;
  /// Of a rank, with padding.
  int64_t shard_numel = 0;
  fsdp::plan::GroupMemory memory;
};

/// In the order in which the units are registered. `forwards`: of an optimizer step.
std::vector<WeightGroup> GroupsOf(const std::vector<EstimatedWeight>& weights,
                                  const TrainConfig& config, const Arrangement& arrangement,
                                  int64_t forwards);

/// What a rank has for the parameters, in bytes; the optimizer's apart.
struct HeldMemory {
  int64_t shards = 0;
  /// Of the shards.
  int64_t gradients = 0;
  /// Weights of units that are gathered: of the one that runs, the one that is gathered ahead, and
  /// those that stay gathered.
  int64_t gathered = 0;
  /// Gradients of whole units, until they are reduced, and what that reduction needs.
  int64_t unreduced = 0;

  int64_t total() const { return shards + gradients + gathered + unreduced; }
};

/// What the engine plans for these groups (fsdp::plan::plan_memory). `keeps_whole_gradients`: from
/// one forward of a step to the next, as train.sync_each_micro_batch = false does. Pure.
HeldMemory HeldMemoryOf(const std::vector<WeightGroup>& groups, bool keeps_whole_gradients);

}  // namespace fsdprun::worker
