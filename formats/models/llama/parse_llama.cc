#include "formats/models/llama/parse_llama.h"

#include <string>

#include "formats/models/decoder/parse_decoder.h"

namespace fsdprun {

ModelConfig ParseLlama(const Fields& fields) {
  DecoderConfig config = ParseDecoder(fields, {});
  // With a head_dim it could be computed, but transformers refuses to load it.
  if (config.hidden_size % config.num_attention_heads != 0) {
    fields.Refuse("num_attention_heads",
                  "a divisor of hidden_size = " + std::to_string(config.hidden_size));
  }
  config.has_qkv_bias = fields.Flag("attention_bias", false);
  config.has_output_bias = config.has_qkv_bias;
  config.mlp_bias = fields.Flag("mlp_bias", false);
  return DescribeDecoder("llama", config);
}

}  // namespace fsdprun
