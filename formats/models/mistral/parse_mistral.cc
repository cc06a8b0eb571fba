#include "formats/models/mistral/parse_mistral.h"

#include "formats/models/decoder/parse_decoder.h"

namespace fsdprun {
namespace {

constexpr int64_t kMistralWindow = 4096;

}  // namespace

ModelConfig ParseMistral(const Fields& fields) {
  DecoderConfig config =
      ParseDecoder(fields, {.max_position_embeddings = int64_t{1} << 17, .num_key_value_heads = 8});
  // Without the key the window is the default; with null there is none.
  if (!fields.IsNull("sliding_window")) {
    config.layer_windows.assign(
        config.num_hidden_layers,
        fields.DimensionOr(kMistralWindow, "sliding_window", kMaxPositions));
  }
  return DescribeDecoder("mistral", config);
}

}  // namespace fsdprun
