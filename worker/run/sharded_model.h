#pragma once

#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>

#include "worker/config/config.h"
#include "worker/models/causal_lm.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

/// A model whose parameters are sharded over the ranks of a world.
struct ShardedModel {
  fsdp::Unit<CausalLm> module;
  fsdp::FSDPModule root;
};

/// Shards an unmaterialized model over the world's mesh (ArrangeRanks). The shards are not
/// initialised; FillWeights or a checkpoint does that. Collective.
ShardedModel ShardModel(const TrainConfig& config, const ModelConfig& description,
                        const World& world);

/// Random weights from model.seed or those of model.weights. No collective.
void FillWeights(const TrainConfig& config, ShardedModel& model);

/// Whether every weight on every rank is a finite number. Collective.
bool HasFiniteWeights(const ShardedModel& model, const World& world);

/// Recomputes each block in backward instead of keeping its activations.
void CheckpointActivations(ShardedModel& model);

}  // namespace fsdprun::worker
