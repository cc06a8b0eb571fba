#pragma once

#include <string>

#include "formats/models/config_fields.h"
#include "formats/models/model_config.h"

namespace fsdprun {

/// What a family's files mean where they say nothing.
struct DecoderDefaults {
  int64_t max_position_embeddings = 2048;
  /// 0: as many as num_attention_heads; so means null in the file of any family.
  int64_t num_key_value_heads = 0;
  /// 0: hidden_size / num_attention_heads.
  int64_t head_dim = 0;
};

/// Reads the keys that all families of decoders share, and refuses those with which transformers
/// computes something else. Biases, norms of heads and windows are left to the family.
DecoderConfig ParseDecoder(const Fields& fields, const DecoderDefaults& defaults);

/// The model of a decoder.
ModelConfig DescribeDecoder(const std::string& model_type, const DecoderConfig& config);

}  // namespace fsdprun
