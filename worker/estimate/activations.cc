#include "worker/estimate/activations.h"

#include <algorithm>
#include <variant>

#include "worker/estimate/trained_parts.h"
#include "worker/models/fused/loss_chunks.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kFloat = 4;

/// What a norm keeps, in bytes: for each element, and for each row.
struct NormBytes {
  /// Of its input, if it is that itself and no cast of it.
  int64_t input = 0;
  int64_t cast = 0;
  /// Of the normalised input, for the gradient of the weight; 0: that is made of the input again.
  int64_t normalised = 0;
  /// Of the output, which what comes behind keeps.
  int64_t output = 0;
  int64_t row = 0;
};

NormBytes RmsNormBytes(const ForwardShape& shape) {
  const int64_t element = shape.element_bytes;
  const bool is_float = element == kFloat;
  if (!shape.has_fused_kernels) {
    return {is_float ? kFloat : 0, is_float ? 0 : kFloat, element, element, kFloat};
  }
  if (!is_float && !shape.is_gpu) {
    return {0, kFloat, kFloat, element, kFloat};
  }
  return {element, 0, 0, element, kFloat};
}

NormBytes LayerNormBytes(const ForwardShape& shape) {
  return {shape.element_bytes, 0, 0, shape.element_bytes, 2 * shape.element_bytes};
}

/// What backward asks of a norm.
struct NormUse {
  /// Whether the input has a gradient, and the weight.
  bool has_gradient = true;
  bool is_trained = true;
  bool keeps_output = true;
};

int64_t BytesOf(const NormBytes& norm, int64_t rows, int64_t width, const NormUse& use) {
  const bool keeps_input = use.has_gradient || (use.is_trained && norm.normalised == 0);
  int64_t bytes = keeps_input ? rows * (width * (norm.input + norm.cast) + norm.row) : 0;
  bytes += use.is_trained ? rows * width * norm.normalised : 0;
  return bytes + (use.keeps_output ? rows * width * norm.output : 0);
}

/// Goes through a network in the order of its forward. `has_gradient`: whether what has been
/// computed until there has a gradient, as anything before it is trained.
struct Walk {
  const ForwardShape& shape;
  bool has_gradient = false;
  int64_t bytes = 0;

  void AddNorm(const NormBytes& norm, int64_t width, bool is_trained, bool keeps_output) {
    bytes += BytesOf(norm, shape.tokens(), width, {has_gradient, is_trained, keeps_output});
    has_gradient = has_gradient || is_trained;
  }
  /// Tensors of `elements` in all, if `is_kept`.
  void Add(bool is_kept, int64_t elements) {
    bytes += is_kept ? elements * shape.element_bytes : 0;
  }
};

/// What the parts of a network take, in bytes.
struct NetworkBytes {
  std::vector<int64_t> blocks;
  /// Whether a block has a backward.
  std::vector<bool> has_backward;
  /// Of what a block keeps: its input itself.
  int64_t input_in_block = 0;
  /// Of the norm behind the blocks.
  int64_t last_norm = 0;
  /// In the backward of a block: gradients of its widest tensors.
  int64_t in_block = 0;
  int64_t tables = 0;
};

bool HasWindow(const DecoderConfig& network, const ForwardShape& shape, int64_t layer) {
  const int64_t window =
      network.layer_windows.empty() ? 0 : network.layer_windows[static_cast<size_t>(layer)];
  return window > 0 && shape.seq_len > window;
}

/// Of queries, keys, values and output, and a sum for each head. Kernels of GPUs have no groups of
/// heads in float32, nor with a mask (grouped_attention.h).
void AddAttention(const DecoderConfig& network, bool has_mask, const TrainedPart& trained,
                  Walk& walk) {
  const ForwardShape& shape = walk.shape;
  const int64_t tokens = shape.tokens();
  const int64_t query = network.num_attention_heads * network.head_dim;
  const int64_t key = network.num_key_value_heads * network.head_dim;
  const bool is_repeated =
      !shape.has_fused_kernels || (shape.is_gpu && (has_mask || shape.element_bytes == kFloat));
  walk.Add(true, tokens * (2 * query + 2 * (is_repeated ? query : key)));
  walk.bytes += tokens * network.num_attention_heads * kFloat;
  walk.Add(has_mask, shape.seq_len * shape.seq_len);
  if (network.has_head_norms) {
    const NormBytes norm = RmsNormBytes(shape);
    const auto head_norm = [&](const char* weight, int64_t heads) {
      return BytesOf(norm, tokens * heads, network.head_dim,
                     {/*has_gradient=*/true, trained.Has(weight), /*keeps_output=*/false});
    };
    walk.bytes += head_norm("self_attn.q_norm.weight", network.num_attention_heads) +
                  head_norm("self_attn.k_norm.weight", network.num_key_value_heads);
  }
}

void AddBlock(const DecoderConfig& network, int64_t layer, const TrainedPart& trained, Walk& walk) {
  const ForwardShape& shape = walk.shape;
  const int64_t tokens = shape.tokens();
  const NormBytes norm = RmsNormBytes(shape);
  walk.AddNorm(norm, network.hidden_size, trained.Has("input_layernorm.weight"),
               trained.NeedsInputOf({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}));
  walk.has_gradient =
      walk.has_gradient || trained.HasAnyOf({"self_attn.q_", "self_attn.k_", "self_attn.v_"});
  if (walk.has_gradient) {
    AddAttention(network, HasWindow(network, shape, layer), trained, walk);
  } else {
    walk.Add(trained.NeedsInputOf({"self_attn.o_proj"}),
             tokens * network.num_attention_heads * network.head_dim);
  }
  walk.has_gradient = walk.has_gradient || trained.HasAnyOf({"self_attn.o_proj"});
  walk.AddNorm(norm, network.hidden_size, trained.Has("post_attention_layernorm.weight"),
               trained.NeedsInputOf({"mlp.gate_proj", "mlp.up_proj"}));
  walk.has_gradient = walk.has_gradient || trained.HasAnyOf({"mlp.gate_proj", "mlp.up_proj"});
  // SwiGLU on a CPU, but in float32, keeps what silu makes as well.
  const bool is_one_pass =
      shape.has_fused_kernels && (shape.is_gpu || shape.element_bytes == kFloat);
  const int64_t inner = tokens * network.intermediate_size;
  walk.Add(walk.has_gradient, (is_one_pass ? 2 : 3) * inner);
  walk.Add(trained.NeedsInputOf({"mlp.down_proj"}), inner);
  walk.has_gradient = walk.has_gradient || trained.HasAnyOf({"mlp.down_proj"});
}

void AddBlock(const Gpt2Config& network, int64_t /*layer*/, const TrainedPart& trained,
              Walk& walk) {
  const int64_t tokens = walk.shape.tokens();
  const int64_t hidden = tokens * network.n_embd;
  const NormBytes norm = LayerNormBytes(walk.shape);
  walk.AddNorm(norm, network.n_embd, trained.HasAnyOf({"ln_1."}),
               trained.NeedsInputOf({"attn.c_attn"}));
  walk.has_gradient = walk.has_gradient || trained.HasAnyOf({"attn.c_attn"});
  if (walk.has_gradient) {
    // Queries, keys and values in one tensor, and the output.
    walk.Add(true, 4 * hidden);
    walk.bytes += tokens * network.n_head * kFloat;
  } else {
    walk.Add(trained.NeedsInputOf({"attn.c_proj"}), hidden);
  }
  walk.has_gradient = walk.has_gradient || trained.HasAnyOf({"attn.c_proj"});
  walk.AddNorm(norm, network.n_embd, trained.HasAnyOf({"ln_2."}),
               trained.NeedsInputOf({"mlp.c_fc"}));
  walk.has_gradient = walk.has_gradient || trained.HasAnyOf({"mlp.c_fc"});
  walk.Add(walk.has_gradient, tokens * network.n_inner);
  walk.Add(trained.NeedsInputOf({"mlp.c_proj"}), tokens * network.n_inner);
  walk.has_gradient = walk.has_gradient || trained.HasAnyOf({"mlp.c_proj"});
}

/// The blocks, one after the other. Checkpointed, the input of one that is trained has a gradient.
template <class Network>
void AddBlocks(const Network& network, int64_t blocks, const TrainedParts& trained, Walk& walk,
               NetworkBytes& bytes) {
  for (int64_t i = 0; i < blocks; ++i) {
    const TrainedPart& block = trained.Block(i);
    walk.bytes = 0;
    walk.has_gradient =
        walk.has_gradient || (walk.shape.checkpoints_blocks && !block.names.empty());
    AddBlock(network, i, block, walk);
    walk.Add(true, walk.shape.tokens() * block.adapter_ranks);
    bytes.blocks.push_back(walk.bytes);
    bytes.has_backward.push_back(walk.has_gradient);
  }
  walk.bytes = 0;
}

NetworkBytes BytesOf(const DecoderConfig& network, const TrainedParts& trained, Walk walk,
                     bool keeps_last) {
  const ForwardShape& shape = walk.shape;
  const int64_t tokens = shape.tokens();
  const NormBytes norm = RmsNormBytes(shape);
  NetworkBytes bytes;
  AddBlocks(network, network.num_hidden_layers, trained, walk, bytes);
  bytes.input_in_block = tokens * network.hidden_size * norm.input;
  walk.AddNorm(norm, network.hidden_size, trained.others.Has("model.norm.weight"), keeps_last);
  bytes.last_norm = walk.bytes;
  bytes.in_block =
      2 * tokens * (network.intermediate_size + network.hidden_size) * shape.element_bytes;
  const int64_t table_bytes = shape.element_bytes == kFloat ? kFloat : kFloat + shape.element_bytes;
  bool has_masks = false;
  for (int64_t i = 0; i < network.num_hidden_layers; ++i) {
    has_masks = has_masks || HasWindow(network, shape, i);
  }
  bytes.tables = 2 * shape.seq_len * network.head_dim * table_bytes +
                 (has_masks ? shape.seq_len * shape.seq_len : 0);
  return bytes;
}

NetworkBytes BytesOf(const Gpt2Config& network, const TrainedParts& trained, Walk walk,
                     bool keeps_last) {
  const ForwardShape& shape = walk.shape;
  const int64_t tokens = shape.tokens();
  const int64_t element = shape.element_bytes;
  const NormBytes norm = LayerNormBytes(shape);
  NetworkBytes bytes;
  AddBlocks(network, network.n_layer, trained, walk, bytes);
  bytes.input_in_block = tokens * network.n_embd * norm.input;
  walk.AddNorm(norm, network.n_embd, trained.others.HasAnyOf({"transformer.ln_f."}), keeps_last);
  bytes.last_norm = walk.bytes;
  // The gradient of a matrix is made beside the gradients that are reduced.
  const bool has_matrices =
      std::any_of(trained.blocks.begin(), trained.blocks.end(), [](const auto& block) {
        return block.second.Has("mlp.c_fc.weight") || block.second.Has("mlp.c_proj.weight");
      });
  bytes.in_block = tokens * (network.n_inner + 2 * network.n_embd) * element +
                   (has_matrices && !shape.is_gpu ? network.n_embd * network.n_inner * element : 0);
  bytes.tables = shape.seq_len * int64_t{8};
  return bytes;
}

/// What is outside of the blocks.
struct Ends {
  int64_t hidden_size = 0;
  bool trains_embedding = false;
  bool trains_head = false;
  bool trains_positions = false;
};

Ends EndsOf(const ModelConfig& model, const TrainedPart& trained) {
  Ends ends;
  for (const WeightShape& weight : model.weights) {
    if (weight.name == model.names.embedding) {
      ends.hidden_size = weight.shape.back();
    }
  }
  ends.trains_embedding = trained.Has(model.names.embedding);
  ends.trains_head = model.has_tied_head() ? ends.trains_embedding : trained.Has("lm_head.weight");
  ends.trains_positions = trained.Has("transformer.wpe.weight");
  return ends;
}

/// Logits and what is made of them, of operations that have all logits at a time.
int64_t LossBytes(const ModelConfig& model, const Ends& ends, const ForwardShape& shape) {
  const int64_t tokens = shape.tokens();
  const int64_t logits = tokens * model.vocab_size;
  const int64_t head = model.vocab_size * ends.hidden_size * shape.element_bytes;
  // Logarithms of probabilities, their gradient, and that of the logits.
  const int64_t of_loss = 3 * kFloat * logits;
  const bool is_written_in_place = !ends.trains_head || (!shape.is_gpu && !model.has_tied_head());
  if (is_written_in_place) {
    return of_loss;
  }
  const int64_t of_logits = shape.element_bytes == kFloat ? kFloat : kFloat + shape.element_bytes;
  return std::max(of_loss,
                  of_logits * logits + tokens * ends.hidden_size * shape.element_bytes + head);
}

/// The same of fused::LinearCrossEntropy: gradients of the last hidden states, if these have one,
/// and of the head, which in half precision is summed in float32 over several chunks. A CPU has
/// logits in half precision in float32 as well.
int64_t FusedLossBytes(const ModelConfig& model, const Ends& ends, const ForwardShape& shape,
                       bool has_gradient) {
  const bool is_float = shape.element_bytes == kFloat;
  const int64_t chunk =
      std::min(shape.tokens(), fused::ChunksFor(model.vocab_size, !shape.is_gpu).rows);
  const bool is_summed = !is_float && shape.tokens() > chunk;
  const int64_t head = ends.trains_head ? model.vocab_size * ends.hidden_size : 0;
  const int64_t hidden = has_gradient ? shape.tokens() * ends.hidden_size * shape.element_bytes : 0;
  return hidden + head * (shape.element_bytes + (is_summed ? kFloat : 0)) +
         chunk * model.vocab_size * shape.element_bytes +
         (is_float || shape.is_gpu ? 0 : chunk * model.vocab_size * kFloat);
}

/// The most of gradients of a block's weights, and of the ends'.
void AddGradients(const ModelConfig& model, const TrainedParts& trained, const Ends& ends,
                  const ForwardShape& shape, Activations& activations) {
  const int64_t embedding = model.vocab_size * ends.hidden_size * shape.element_bytes;
  if (shape.is_gpu) {
    int64_t most = 0;
    for (const auto& [number, block] : trained.blocks) {
      most = std::max(most, block.numel);
    }
    activations.in_block += most * shape.element_bytes;
  }
  const bool waits = shape.is_gpu || model.has_tied_head();
  if (waits && ends.trains_head) {
    activations.in_block += embedding;  // the head's gradient waits for the rest of its unit's
  }
  const bool is_thrice = model.has_tied_head() && ends.trains_head;
  const int64_t of_ends =
      (ends.trains_embedding ? 1 : 0) + (shape.is_gpu && ends.trains_head ? 1 : 0);
  activations.at_end = (is_thrice ? 3 : of_ends) * embedding +
                       shape.tokens() * ends.hidden_size * shape.element_bytes;
}

}  // namespace

int64_t Activations::peak() const {
  return tables + std::max({blocks + at_loss, blocks + recomputed + in_block, at_end});
}

Activations ActivationsOf(const ModelConfig& model, const std::vector<EstimatedWeight>& weights,
                          const ForwardShape& shape) {
  const TrainedParts trained = TrainedPartsOf(weights);
  const Ends ends = EndsOf(model, trained.others);
  const bool begins_with_gradient = ends.trains_embedding || ends.trains_positions;
  const bool keeps_last = ends.trains_head || shape.has_fused_kernels;
  const NetworkBytes network = std::visit(
      [&](const auto& given) {
        return BytesOf(given, trained, Walk{shape, begins_with_gradient, 0}, keeps_last);
      },
      model.network);
  const int64_t hidden = shape.tokens() * ends.hidden_size * shape.element_bytes;
  Activations activations;
  int64_t largest = 0;
  for (size_t i = 0; i < network.blocks.size(); ++i) {
    const int64_t input = network.has_backward[i] ? hidden : 0;
    activations.blocks += shape.checkpoints_blocks ? input : network.blocks[i];
    largest = std::max(largest, network.blocks[i]);
  }
  if (shape.checkpoints_blocks) {
    activations.recomputed = std::max<int64_t>(0, largest - network.input_in_block);
  }
  const bool has_gradient = begins_with_gradient || !trained.blocks.empty() ||
                            trained.others.HasAnyOf({"model.norm.", "transformer.ln_f."});
  activations.at_loss = network.last_norm + (shape.has_fused_kernels
                                                 ? FusedLossBytes(model, ends, shape, has_gradient)
                                                 : LossBytes(model, ends, shape));
  activations.in_block = network.in_block;
  AddGradients(model, trained, ends, shape, activations);
  activations.tables = network.tables;
  return activations;
}

}  // namespace fsdprun::worker
