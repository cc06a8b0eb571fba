#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/models/decoder/decoder_config.h"
#include "formats/models/gpt2/gpt2_config.h"

namespace fsdprun {

/// A parameter: its name, which is Hugging Face's, and its sizes.
struct WeightShape {
  std::string name;
  std::vector<int64_t> shape;
};

/// What files of weights may say other than the model does.
struct WeightNames {
  /// "model.": files of a model without its head leave it out of all names.
  std::string body_prefix;
  std::string embedding;
  /// The head, which is the embedding; empty: the head is a parameter of its own, or there is none.
  std::string tied_head;
  /// Ends of the names of buffers that old files have and the model computes.
  std::vector<std::string> ignored_suffixes;
};

/// The network that a Hugging Face config.json describes, and what the program needs to know of
/// any.
struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  WeightNames names;
  /// The parameters in the order in which the module registers them; a tied head is not one.
  std::vector<WeightShape> weights;
  /// All settings of the network, by the names of config.json; what is not set is null. Two models
  /// with the same description compute the same from the same weights.
  Json description = Json::object();
  /// Settings that training does not honour, as sentences for the user.
  std::vector<std::string> warnings;
  std::variant<DecoderConfig, Gpt2Config> network;

  bool has_tied_head() const { return !names.tied_head.empty(); }
};

/// Parses config.json by the family that its model_type names: llama, qwen2, qwen3, mistral or
/// gpt2. Keys that do not concern the network are ignored, as by transformers. `source` names the
/// file in errors. Errors: ConfigError naming key, value and expectation for keys that are missing,
/// of the wrong type, inconsistent (heads that do not divide) or not supported (another model_type,
/// activation, RoPE type). What others read of an exported file, and only they, is formats/hf's to
/// complete.
ModelConfig ParseModelConfig(const Json& document, const std::string& source);

/// The config.json of an HF model directory; a file's own path.
std::filesystem::path ModelConfigPath(const std::string& path);

/// `path`: an HF model directory or a config.json in one.
ModelConfig ReadModelConfig(const std::string& path);

/// Trainable parameters; a tied head counts once.
int64_t ParameterCount(const ModelConfig& config);

}  // namespace fsdprun
