#pragma once

#include <fsdp/fully_shard.h>

#include <string>
#include <vector>

namespace fsdprun::worker {

/// Fills `slices` (FSDPModule::sharded_parameters of a model with Hugging Face names) from the HF
/// directory `directory`. Each rank reads only its own ranges. Stored float32, bfloat16 and float16
/// are converted to the dtype of the slice.
/// A directory may hold `lm_head.weight` beside a tied head if it equals the embedding; buffers of
/// old exports ("*.rotary_emb.inv_freq") are ignored.
/// Errors: ConfigError naming the tensors that are missing, that the model lacks, or whose shape or
/// dtype does not fit. No collective.
void LoadWeights(const std::string& directory, const std::vector<fsdp::ShardedSlice>& slices,
                 bool has_tied_head);

}  // namespace fsdprun::worker
