#include "formats/models/qwen/parse_qwen.h"

#include <optional>

#include "formats/models/decoder/parse_decoder.h"

namespace fsdprun {
namespace {

constexpr int64_t kDefaultPositions = 32768;
constexpr int64_t kDefaultKeyValueHeads = 32;
constexpr int64_t kDefaultHeadDim = 128;  // Qwen3's
constexpr int64_t kQwenWindow = 4096;
constexpr int64_t kDefaultMaxWindowLayers = 28;

/// nullopt: no layer has one.
std::optional<int64_t> ParseWindow(const Fields& fields) {
  if (!fields.Flag("use_sliding_window", false) || fields.IsNull("sliding_window")) {
    return std::nullopt;
  }
  return fields.DimensionOr(kQwenWindow, "sliding_window", kMaxPositions);
}

std::vector<int64_t> WindowsByType(const Fields& fields, int64_t layers,
                                   std::optional<int64_t> window) {
  const char* const key = "layer_types";
  const std::string expectation = std::to_string(layers) +
                                  " (num_hidden_layers) strings \"full_attention\" or "
                                  "\"sliding_attention\"";
  const Json& types = fields.Value(key);
  if (!types.is_array() || types.size() != static_cast<size_t>(layers)) {
    fields.Refuse(key, expectation);
  }
  std::vector<int64_t> windows;
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.Refuse(key, expectation);
    }
    if (type == "sliding_attention" && !window) {
      fields.Refuse(key,
                    "no \"sliding_attention\", as there is no window (use_sliding_window, "
                    "sliding_window)");
    }
    windows.push_back(type == "sliding_attention" ? *window : 0);
  }
  return windows;
}

/// layer_types where it is given; otherwise the layers from max_window_layers on have windows.
std::vector<int64_t> ParseWindows(const Fields& fields, int64_t layers) {
  const std::optional<int64_t> window = ParseWindow(fields);
  std::vector<int64_t> windows(layers, 0);
  if (fields.Has("layer_types")) {
    windows = WindowsByType(fields, layers, window);
  } else if (window) {
    const char* const key = "max_window_layers";
    const std::optional<int64_t> first =
        fields.Has(key) ? fields.Integer(key) : kDefaultMaxWindowLayers;
    if (!first || *first < 0) {
      fields.Refuse(key, "an integer >= 0");
    }
    for (int64_t i = *first; i < layers; ++i) {
      windows[i] = *window;
    }
  }
  if (windows == std::vector<int64_t>(layers, 0)) {
    return {};
  }
  return windows;
}

}  // namespace

ModelConfig ParseQwen2(const Fields& fields) {
  DecoderConfig config = ParseDecoder(fields, {.max_position_embeddings = kDefaultPositions,
                                               .num_key_value_heads = kDefaultKeyValueHeads});
  config.has_qkv_bias = true;
  config.layer_windows = ParseWindows(fields, config.num_hidden_layers);
  return DescribeDecoder("qwen2", config);
}

ModelConfig ParseQwen3(const Fields& fields) {
  DecoderConfig config = ParseDecoder(fields, {.max_position_embeddings = kDefaultPositions,
                                               .num_key_value_heads = kDefaultKeyValueHeads,
                                               .head_dim = kDefaultHeadDim});
  config.has_qkv_bias = fields.Flag("attention_bias", false);
  config.has_output_bias = config.has_qkv_bias;
  config.has_head_norms = true;
  config.layer_windows = ParseWindows(fields, config.num_hidden_layers);
  return DescribeDecoder("qwen3", config);
}

}  // namespace fsdprun
