#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdprun {

/// Llama 3's frequency scaling (rope_type "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
};

/// A decoder as Llama's, with what Qwen and Mistral changed as options. The names are those of
/// config.json, and so are the defaults, Llama's.
struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling;
  /// Biases of q_proj, k_proj and v_proj, and of o_proj.
  bool has_qkv_bias = false;
  bool has_output_bias = false;
  bool mlp_bias = false;
  /// q_norm and k_norm: a norm of each head of queries and keys before the rotation.
  bool has_head_norms = false;
  /// How many positions each layer sees, its own included; 0: all before it. Empty: all see all.
  std::vector<int64_t> layer_windows;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  /// Its row of the embedding starts at zero and gets no gradient through the embedding (a tied
  /// head still gives it one), as with torch.nn.Embedding's padding_idx.
  std::optional<int64_t> padding_token;
};

}  // namespace fsdprun
