#pragma once

#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>

#include <set>
#include <string>

#include "worker/checkpoint/checkpoint.h"
#include "worker/config/config.h"
#include "worker/models/causal_lm.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

/// A model whose parameters are sharded over the ranks of a world.
struct ShardedModel {
  fsdp::Unit<CausalLm> module;
  fsdp::FSDPModule root;
  /// The parameters that keep their values.
  std::set<std::string> frozen = {};
  /// These are a base, which checkpoints do not have: its adapters are trained.
  bool has_adapters = false;
};

/// Shards an unmaterialized model over the world's mesh (ArrangeRanks), with the adapters of `lora`
/// and frozen where the configuration says so. In float32, but for a base that is kept as it is
/// stored: Note [Dtype of a base]. The shards are not initialised; FillWeights or a checkpoint does
/// that. Collective. Errors: as FrozenWeights's; for the dtype of a base as FillWeightsOnAll's.
ShardedModel ShardModel(const TrainConfig& config, const ModelConfig& description,
                        const World& world);

/// Random weights from model.seed or those of model.weights, the same with and without adapters,
/// which begin from model.seed. No collective. Errors: as LoadWeights.
void FillWeights(const TrainConfig& config, ShardedModel& model);
/// The same on all ranks; collective. What a rank cannot read for now is tried again. Errors: what
/// one of them meets, on all; it names the rank, unless all meet the same.
void FillWeightsOnAll(const TrainConfig& config, const checkpoint::Group& group,
                      ShardedModel& model);

/// Whether every weight that is trained is a finite number on every rank. Collective.
bool HasFiniteWeights(const ShardedModel& model, const World& world);

/// Recomputes each block in backward instead of keeping its activations.
void CheckpointActivations(ShardedModel& model);

}  // namespace fsdprun::worker
