#pragma once

#include <cstdint>

#include "formats/models/model_config.h"
#include "worker/config/config.h"

namespace fsdprun::worker {

/// Proves that `model` has positions for the windows of `config`. Errors: ConfigError. Pure.
void CheckPositions(const TrainConfig& config, const ModelConfig& model);

/// Proves that a run of `config` would take `model` and this number of ranks, as far as neither
/// data nor files of weights are needed for that. Errors: ConfigError for windows beyond the
/// model's positions, for a step of more than 2^40 tokens, for patterns of train.freeze that match
/// no parameter, or leave none to be trained, and for lora.targets that are no layers. Pure.
void CheckFitsModel(const TrainConfig& config, const ModelConfig& model, int64_t ranks);

}  // namespace fsdprun::worker
