#pragma once

#include <cstdint>

namespace fsdprun {

/// The network of a config.json with model_type "gpt2", by its names.
struct Gpt2Config {
  int64_t vocab_size = 0;
  int64_t n_positions = 1024;
  int64_t n_embd = 0;
  int64_t n_layer = 0;
  int64_t n_head = 0;
  int64_t n_inner = 0;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  /// Whether attention's scores are divided by the root of the head's width, and by the layer's
  /// number (from 1).
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;
};

}  // namespace fsdprun
