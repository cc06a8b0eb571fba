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

/// The dtype of the frozen base of adapters on a rank: Note [Dtype of a base]. Reads what the files
/// of model.weights say of their tensors; "float32" if they cannot be read, which their load will
/// say.
std::string BaseDtypeOf(const TrainConfig& config, const ModelConfig& model);

}  // namespace fsdprun::worker
