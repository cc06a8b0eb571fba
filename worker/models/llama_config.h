#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// Llama 3's frequency scaling (rope_type "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
};

/// The network described by a Hugging Face config.json with model_type "llama".
struct LlamaConfig {
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
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  /// Its row of the embedding starts at zero and gets no gradient through the embedding (a tied
  /// head still gives it one), as with torch.nn.Embedding's padding_idx.
  std::optional<int64_t> padding_token;
};

/// Parses config.json; keys that do not concern the network are ignored, as by the HF loader.
/// `source` names it in errors. Errors: ConfigError naming key, value and expectation for keys that
/// are missing, of the wrong type, inconsistent (heads that do not divide) or not supported
/// (another model_type, activation, RoPE type, layers that differ).
LlamaConfig ParseLlamaConfig(const Json& document, const std::string& source);

/// `path`: an HF model directory or a config.json in one. Its config.json.
std::filesystem::path ModelConfigPath(const std::string& path);
/// As ParseLlamaConfig of that file.
LlamaConfig ReadLlamaConfig(const std::string& path);

/// Everything in `config`, by the names of config.json; what is not set is null. Two models with
/// the same description compute the same from the same weights.
Json DescribeLlama(const LlamaConfig& config);

/// Trainable parameters; a tied head counts once.
int64_t ParameterCount(const LlamaConfig& config);

}  // namespace fsdprun::worker
