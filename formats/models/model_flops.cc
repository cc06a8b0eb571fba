#include "formats/models/model_flops.h"

#include <algorithm>
#include <variant>

namespace fsdprun {
namespace {

constexpr char kPositions[] = "transformer.wpe.weight";

double MultipliedElements(const ModelConfig& config) {
  double elements = 0;
  for (const WeightShape& weight : config.weights) {
    const bool is_head = weight.name == config.names.embedding && config.has_tied_head();
    const bool is_looked_up = weight.name == config.names.embedding || weight.name == kPositions;
    if (weight.shape.size() == 2 && (is_head || !is_looked_up)) {
      elements += static_cast<double>(weight.shape[0]) * static_cast<double>(weight.shape[1]);
    }
  }
  return elements;
}

/// The sum over layers of the width of all heads times the positions that a token sees.
double AttentionElements(const DecoderConfig& network, int64_t seq_len) {
  const int64_t width = network.num_attention_heads * network.head_dim;
  double positions = 0;
  for (int64_t layer = 0; layer < network.num_hidden_layers; ++layer) {
    const int64_t window =
        network.layer_windows.empty() ? 0 : network.layer_windows[static_cast<size_t>(layer)];
    positions += static_cast<double>(window > 0 ? std::min(window, seq_len) : seq_len);
  }
  return static_cast<double>(width) * positions;
}

double AttentionElements(const Gpt2Config& network, int64_t seq_len) {
  return static_cast<double>(network.n_embd) * static_cast<double>(network.n_layer) *
         static_cast<double>(seq_len);
}

}  // namespace

double ModelFlopsPerToken(const ModelConfig& config, int64_t seq_len, bool has_frozen_matrices) {
  const double attention = std::visit(
      [&](const auto& network) { return AttentionElements(network, seq_len); }, config.network);
  return (has_frozen_matrices ? 4 : 6) * MultipliedElements(config) + 12 * attention;
}

}  // namespace fsdprun
