#pragma once

#include <cstdint>
#include <vector>

#include "worker/config/config.h"
#include "worker/estimate/held_memory.h"

namespace fsdprun::worker {

/// What optimizer.name takes on a rank, in bytes.
struct OptimizerMemory {
  /// For good: two float32 for each element of AdamW, one of SGD with a momentum and of Muon. The
  /// most that a rank can have, since one whose shard has more of Muon's matrices has less of the
  /// rest.
  int64_t state = 0;
  /// While it updates: matrices that Muon gathers, works on, and gives back.
  int64_t working = 0;
  /// Of all ranks that divide a model together, as a checkpoint has it.
  int64_t state_of_model = 0;
};

/// `groups` of `weights`. Pure.
OptimizerMemory OptimizerMemoryOf(const std::vector<EstimatedWeight>& weights,
                                  const std::vector<WeightGroup>& groups,
                                  const TrainConfig::Optimizer& optimizer);

/// Whether Muon updates it, if that is the optimizer: a matrix of a block.
bool IsOfMuon(const EstimatedWeight& weight, const TrainConfig::Optimizer& optimizer);

}  // namespace fsdprun::worker
