#pragma once

#include <fsdp/fully_shard.h>

#include <string>
#include <vector>

namespace fsdprun::worker {

/// Fills `slices` (FSDPModule::sharded_parameters of a model with Hugging Face names) from the HF
/// directory `directory`. Each rank reads only its own ranges. Stored float32, bfloat16 and float16
/// are converted to the dtype of the slice.
/// With a tied head a `lm_head.weight` is accepted if it equals the embedding; buffers of
/// old exports ("*.rotary_emb.inv_freq") are ignored.
/// Errors: ConfigError naming tensors that are missing, unknown to the model, or of the wrong shape
/// or dtype. No collective.
void LoadWeights(const std::string& directory, const std::vector<fsdp::LocalShard>& slices,
                 bool has_tied_head);

}  // namespace fsdprun::worker
