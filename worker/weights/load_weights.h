#pragma once

#include <fsdp/fully_shard.h>

#include <string>
#include <vector>

#include "formats/models/model_config.h"

namespace fsdprun::worker {

/// Fills `slices` (FSDPModule::sharded_parameters of a model with Hugging Face names) from the HF
/// directory `directory`. Each rank reads only its own ranges. Stored float32, bfloat16 and float16
/// are converted to the dtype of the slice.
/// Files may leave out the body's prefix, as those of a model without its head do; with a tied head
/// they may have one if it equals the embedding; the buffers that `names` lists are ignored.
/// Errors: ConfigError naming tensors that are missing, unknown to the model, or of the wrong shape
/// or dtype. No collective.
void LoadWeights(const std::string& directory, const std::vector<fsdp::LocalShard>& slices,
                 const WeightNames& names);

}  // namespace fsdprun::worker
