#pragma once

#include <fsdp/fully_shard.h>

#include <set>
#include <string>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/run/sharded_model.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

/// The weights of the model that keep their values: with lora all of them, else those that
/// train.freeze matches. Pure. Errors: ConfigError for lora.targets that are no layers.
std::set<std::string> FrozenWeights(const TrainConfig& config, const ModelConfig& model);

/// The parameters that are trained, in the order of FSDPModule::sharded_parameters().
std::vector<fsdp::LocalShard> TrainedParameters(const ShardedModel& model);

/// What tells the frozen weights from those of another base, the same at any number of ranks:
/// Note [Digest of weights]. Reads all of them, which takes about a second for each GB of this
/// rank's. Collective.
std::string DigestOfBase(const ShardedModel& model, const World& world);

}  // namespace fsdprun::worker
