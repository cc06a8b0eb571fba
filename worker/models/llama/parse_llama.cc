#include "worker/models/llama/parse_llama.h"

#include "worker/models/decoder/parse_decoder.h"

namespace fsdprun::worker {

ModelConfig ParseLlama(const Fields& fields) {
  DecoderConfig config = ParseDecoder(fields, {});
  config.has_qkv_bias = fields.Flag("attention_bias", false);
  config.has_output_bias = config.has_qkv_bias;
  config.mlp_bias = fields.Flag("mlp_bias", false);
  return DescribeDecoder("llama", config);
}

}  // namespace fsdprun::worker
