#include "worker/estimate/activations.h"

#include <algorithm>
#include <map>
#include <optional>
#include <variant>

#include "formats/models/block_names.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kFloat = 4;
/// Of a chunk of fused::LinearCrossEntropy.
constexpr int64_t kLogitsOfChunk = int64_t{8} << 20;

/// What a norm keeps, in bytes.
struct NormBytes {
  // For each element: of its input, if it is that itself and no cast of it; of all else, the output
  // among it, which what comes behind keeps.
  int64_t input = 0;
  int64_t others = 0;
  int64_t row = 0;  // for each row
};

NormBytes RmsNormBytes(const ForwardShape& shape) {
  const bool is_float = shape.element_bytes == kFloat;
  if (!shape.has_fused_kernels) {
    // x in float32, the normalised x in x's dtype, and the output.
    return is_float ? NormBytes{kFloat, 2 * kFloat, kFloat}
                    : NormBytes{0, kFloat + 2 * shape.element_bytes, kFloat};
  }
  if (!is_float && !shape.is_gpu) {
    return {0, 2 * kFloat + shape.element_bytes, kFloat};
  }
  return {shape.element_bytes, shape.element_bytes, kFloat};
}

NormBytes LayerNormBytes(const ForwardShape& shape) {
  return {shape.element_bytes, shape.element_bytes, 2 * shape.element_bytes};
}

int64_t BytesOf(const NormBytes& norm, int64_t rows, int64_t width) {
  return rows * (width * (norm.input + norm.others) + norm.row);
}

/// Of a norm whose output nothing keeps.
int64_t BytesWithoutOutput(const NormBytes& norm, const ForwardShape& shape, int64_t rows,
                           int64_t width) {
  return BytesOf(norm, rows, width) - rows * width * shape.element_bytes;
}

/// What the parts of a network take, in bytes.
struct NetworkBytes {
  std::vector<int64_t> blocks;
  /// Of what a block keeps: its input itself.
  int64_t input_in_block = 0;
  /// Of the norm behind the blocks.
  int64_t last_norm = 0;
  /// In the backward of a block: gradients of its widest tensors.
  int64_t in_block = 0;
  int64_t tables = 0;
};

int64_t AttentionBytes(const DecoderConfig& network, const ForwardShape& shape) {
  const int64_t tokens = shape.tokens();
  const int64_t query = network.num_attention_heads * network.head_dim;
  const int64_t key = network.num_key_value_heads * network.head_dim;
  const int64_t key_seen = shape.has_fused_kernels ? key : query;
  int64_t bytes = tokens * (2 * query + 2 * key_seen) * shape.element_bytes +
                  tokens * network.num_attention_heads * kFloat;
  if (network.has_head_norms) {
    const NormBytes norm = RmsNormBytes(shape);
    bytes +=
        BytesWithoutOutput(norm, shape, tokens * network.num_attention_heads, network.head_dim) +
        BytesWithoutOutput(norm, shape, tokens * network.num_key_value_heads, network.head_dim);
  }
  return bytes;
}

NetworkBytes BytesOf(const DecoderConfig& network, const ForwardShape& shape) {
  const int64_t tokens = shape.tokens();
  const NormBytes norm = RmsNormBytes(shape);
  // SwiGLU on a GPU, or not in float32, keeps what silu makes as well.
  const bool is_one_pass =
      shape.has_fused_kernels && !shape.is_gpu && shape.element_bytes == kFloat;
  const int64_t widest = tokens * network.intermediate_size * shape.element_bytes;
  const int64_t block = 2 * BytesOf(norm, tokens, network.hidden_size) +
                        AttentionBytes(network, shape) + (is_one_pass ? 3 : 4) * widest;
  const int64_t square = shape.seq_len * shape.seq_len;
  NetworkBytes bytes;
  bool has_masks = false;
  for (size_t i = 0; i < static_cast<size_t>(network.num_hidden_layers); ++i) {
    const int64_t window = network.layer_windows.empty() ? 0 : network.layer_windows[i];
    const bool has_mask = window > 0 && shape.seq_len > window;
    bytes.blocks.push_back(block + (has_mask ? square * shape.element_bytes : 0));
    has_masks = has_masks || has_mask;
  }
  bytes.input_in_block = tokens * network.hidden_size * norm.input;
  bytes.last_norm = BytesOf(norm, tokens, network.hidden_size);
  bytes.in_block = 2 * widest + 2 * tokens * network.hidden_size * shape.element_bytes;
  const int64_t table_bytes = shape.element_bytes == kFloat ? kFloat : kFloat + shape.element_bytes;
  bytes.tables = 2 * shape.seq_len * network.head_dim * table_bytes + (has_masks ? square : 0);
  return bytes;
}

NetworkBytes BytesOf(const Gpt2Config& network, const ForwardShape& shape) {
  const int64_t tokens = shape.tokens();
  const int64_t element = shape.element_bytes;
  const NormBytes norm = LayerNormBytes(shape);
  const int64_t hidden = tokens * network.n_embd * element;
  const int64_t inner = tokens * network.n_inner * element;
  // Of attention: queries, keys and values in one tensor, and the output.
  const int64_t block = 2 * BytesOf(norm, tokens, network.n_embd) + 4 * hidden +
                        tokens * network.n_head * kFloat + 2 * inner;
  NetworkBytes bytes;
  bytes.blocks.assign(static_cast<size_t>(network.n_layer), block);
  bytes.input_in_block = tokens * network.n_embd * norm.input;
  bytes.last_norm = BytesOf(norm, tokens, network.n_embd);
  // The gradient of a matrix is made beside the gradients that are reduced.
  bytes.in_block =
      inner + 2 * hidden + (shape.is_gpu ? 0 : network.n_embd * network.n_inner * element);
  bytes.tables = shape.seq_len * int64_t{8};
  return bytes;
}

int64_t HiddenSize(const ModelConfig& model) {
  for (const WeightShape& weight : model.weights) {
    if (weight.name == model.names.embedding) {
      return weight.shape.back();
    }
  }
  return 0;
}

/// Elements of the weights of the block that has most.
int64_t BlockNumel(const ModelConfig& model) {
  std::map<int64_t, int64_t> numels;
  int64_t most = 0;
  for (const WeightShape& weight : model.weights) {
    if (const std::optional<int64_t> block = BlockOf(weight.name)) {
      numels[*block] += fsdp::plan::numel_of(weight.shape);
      most = std::max(most, numels[*block]);
    }
  }
  return most;
}

/// Logits and what is made of them, of operations that have all logits at a time.
int64_t LossBytes(const ModelConfig& model, const ForwardShape& shape) {
  const int64_t tokens = shape.tokens();
  const int64_t logits = tokens * model.vocab_size;
  const int64_t head = model.vocab_size * HiddenSize(model) * shape.element_bytes;
  // Logarithms of probabilities, their gradient, and that of the logits.
  const int64_t of_loss = 3 * kFloat * logits;
  const bool is_written_in_place =
      shape.has_frozen_model || (!shape.is_gpu && !model.has_tied_head());
  if (is_written_in_place) {
    return of_loss;
  }
  const int64_t of_logits = shape.element_bytes == kFloat ? kFloat : kFloat + shape.element_bytes;
  return std::max(of_loss,
                  of_logits * logits + tokens * HiddenSize(model) * shape.element_bytes + head);
}

/// The same of fused::LinearCrossEntropy.
int64_t FusedLossBytes(const ModelConfig& model, const ForwardShape& shape) {
  const bool is_float = shape.element_bytes == kFloat;
  const int64_t head = shape.has_frozen_model ? 0 : model.vocab_size * HiddenSize(model);
  const int64_t rows =
      std::min(shape.tokens(), std::max<int64_t>(1, kLogitsOfChunk / model.vocab_size));
  const int64_t chunk = rows * model.vocab_size * (is_float ? kFloat : kFloat + 2);
  const int64_t hidden = shape.tokens() * HiddenSize(model) * shape.element_bytes;
  const int64_t in_forward = head * (is_float ? kFloat : kFloat + 2) + chunk;
  const int64_t in_backward = (head * shape.element_bytes + hidden) * 2 - hidden;
  return hidden + std::max(in_forward, shape.is_loss_divided ? in_backward : 0);
}

}  // namespace

int64_t Activations::peak() const {
  return tables + std::max({blocks + at_loss, blocks + recomputed + in_block, at_end});
}

Activations ActivationsOf(const ModelConfig& model, const ForwardShape& shape) {
  const NetworkBytes network =
      std::visit([&](const auto& given) { return BytesOf(given, shape); }, model.network);
  const int64_t hidden = shape.tokens() * HiddenSize(model) * shape.element_bytes;
  const int64_t embedding =
      shape.has_frozen_model ? 0 : model.vocab_size * HiddenSize(model) * shape.element_bytes;
  const int64_t adapters = shape.tokens() * shape.adapter_ranks * shape.element_bytes;
  Activations activations;
  int64_t largest = 0;
  for (const int64_t block : network.blocks) {
    activations.blocks += shape.checkpoints_blocks ? hidden : block;
    largest = std::max(largest, block);
  }
  const auto blocks = static_cast<int64_t>(network.blocks.size());
  if (shape.checkpoints_blocks) {
    activations.recomputed = largest - network.input_in_block + adapters / blocks;
  } else {
    activations.blocks += adapters;
  }
  activations.at_loss = network.last_norm + (shape.has_fused_kernels ? FusedLossBytes(model, shape)
                                                                     : LossBytes(model, shape));
  activations.in_block = network.in_block;
  if (shape.is_gpu && !shape.has_frozen_model) {
    activations.in_block += BlockNumel(model) * shape.element_bytes;
  }
  if (shape.is_gpu || model.has_tied_head()) {
    activations.in_block += embedding;  // the head's gradient waits for the rest of its unit's
  }
  const int64_t embeddings = model.has_tied_head() ? 3 : shape.is_gpu ? 2 : 1;
  activations.at_end = embeddings * embedding + hidden;
  activations.tables = network.tables;
  return activations;
}

}  // namespace fsdprun::worker
