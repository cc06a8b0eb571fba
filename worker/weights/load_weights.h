#pragma once

#include <fsdp/fully_shard.h>

#include <string>
#include <vector>

#include "formats/models/model_config.h"

namespace fsdprun::worker {

/// Fills `slices` (FSDPModule::sharded_parameters of a model with Hugging Face names) from what
/// lies at `path`: the folder of a Hugging Face model, a file .safetensors, or a checkpoint, of
/// which only the weights are taken, as fsdpctl ckpt export finds them. Each rank reads only its
/// own ranges; of a checkpoint whole pieces, which it compares with their checksums. Stored
/// float32, bfloat16 and float16 are converted to the dtype of the slice. Names may leave out the
/// body's prefix, as those of a model without its head do; with a tied head there may be one if it
/// equals the embedding; the buffers that `names` lists are ignored. Errors: ConfigError naming
/// tensors that are missing, unknown to the model, or of the wrong shape or dtype, and what is
/// damaged; fsdp::archive::Error for what cannot be read for now. No collective.
void LoadWeights(const std::string& path, const std::vector<fsdp::LocalShard>& slices,
                 const WeightNames& names);

/// Proves, of what a file says of its tensors, that LoadWeights would find those of `slices`, and
/// no others. Reads no tensor: whether a tied head equals the embedding is not looked at. Errors:
/// as LoadWeights's.
void CheckWeights(const std::string& path, const std::vector<fsdp::LocalShard>& slices,
                  const WeightNames& names);

}  // namespace fsdprun::worker
