#pragma once

#include <string>

#include "formats/models/model_config.h"
#include "worker/config/config.h"

namespace fsdprun::worker {

// Note [Dtype of a base]
// Weights that are trained are kept in float32, because updates are smaller than what a bfloat16
// can tell. The base of adapters is not updated: it is kept in the dtype that computes, half of
// the memory, if that is the one of its files, as it is of most models. So no value of it changes,
// and its digest, samples and exports are what they would be in float32. A base of float32 files
// stays in float32: rounded it would be another one. So does what train.freeze freezes, which
// checkpoints have in float32, like all that they can train on.

/// The dtype of all weights in the files of model.weights, if that is bfloat16, by what the files
/// say of their tensors; else "float32", also if they are damaged or absent, which their load will
/// say. Looks only if the model is a base of adapters. Errors: checkpoint::CheckpointError for what
/// may pass.
std::string DtypeOfStoredBase(const TrainConfig& config, const ModelConfig& model);

/// The dtype of the model's own weights on a rank, of which the files have `stored`: Note [Dtype of
/// a base]. Pure.
std::string DtypeOfBase(const TrainConfig& config, const std::string& stored);

}  // namespace fsdprun::worker
