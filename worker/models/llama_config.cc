#include "worker/models/llama_config.h"

#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>

namespace fsdprun::worker {
namespace {

// Far above any real model; keeps parameter counts far inside int64.
constexpr int64_t kMaxDimension = int64_t{1} << 22;
constexpr int64_t kMaxLayers = int64_t{1} << 13;
constexpr int64_t kMaxPositions = int64_t{1} << 31;

/// Typed access to the keys of one object of the file; every error names file, key and value.
class Fields {
 public:
  Fields(const Json& object, std::string source, std::string prefix = "")
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  [[noreturn]] void Refuse(const char* key, const std::string& expectation) const {
    const std::string value = Has(key) ? " = " + Excerpt(object_.at(key)) : " is missing";
    throw ConfigError(source_ + ": " + prefix_ + key + value + ": expected " + expectation);
  }

  int64_t Dimension(const char* key, int64_t max = kMaxDimension) const {
    if (!Has(key) || !object_.at(key).is_number_integer()) {
      Refuse(key, "an integer >= 1");
    }
    const std::optional<int64_t> value = Integer(key);
    if (value && *value < 1) {
      Refuse(key, "an integer >= 1");
    }
    if (!value || *value > max) {
      Refuse(key, "at most " + std::to_string(max));
    }
    return *value;
  }
  int64_t DimensionOr(int64_t missing, const char* key, int64_t max = kMaxDimension) const {
    return Has(key) ? Dimension(key, max) : missing;
  }

  double Positive(const char* key) const {
    if (!Has(key) || !object_.at(key).is_number() || !(object_.at(key).get<double>() > 0) ||
        !std::isfinite(object_.at(key).get<double>())) {
      Refuse(key, "a number > 0");
    }
    return object_.at(key).get<double>();
  }
  double Positive(const char* key, double missing) const {
    return Has(key) ? Positive(key) : missing;
  }

  double NumberOr(double missing, const char* key) const {
    if (!Has(key)) {
      return missing;
    }
    if (!object_.at(key).is_number()) {
      Refuse(key, "a number");
    }
    return object_.at(key).get<double>();
  }

  /// nullopt: not an integer, or beyond int64.
  std::optional<int64_t> Integer(const char* key) const {
    const Json& value = object_.at(key);
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() >> 63 != 0);
    return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
  }

  bool Flag(const char* key, bool missing) const {
    if (!Has(key)) {
      return missing;
    }
    if (!object_.at(key).is_boolean()) {
      Refuse(key, "true or false");
    }
    return object_.at(key).get<bool>();
  }

  std::string Text(const char* key, const std::string& missing) const {
    if (!Has(key)) {
      return missing;
    }
    if (!object_.at(key).is_string()) {
      Refuse(key, "a string");
    }
    return object_.at(key).get<std::string>();
  }

  Fields Object(const char* key) const {
    if (!object_.at(key).is_object()) {
      Refuse(key, "an object");
    }
    return Fields(object_.at(key), source_, prefix_ + key + ".");
  }

  bool IsEmpty() const { return object_.empty(); }

  void RefuseKeysExcept(const std::set<std::string>& known, const std::string& expectation) const {
    for (const auto& [key, value] : object_.items()) {
      if (!known.contains(key)) {
        Refuse(key.c_str(), expectation);
      }
    }
  }

 private:
  const Json& object_;
  std::string source_;
  std::string prefix_;
};

/// rope_parameters is the newer spelling and holds theta too; rope_scaling the older, whose files
/// may say "type". A file with both means rope_scaling, as for every version of transformers.
const char* RopeKey(const Fields& fields) {
  if (fields.Has("rope_scaling") && !fields.Object("rope_scaling").IsEmpty()) {
    return "rope_scaling";
  }
  return fields.Has("rope_parameters") ? "rope_parameters" : nullptr;
}

void ParseRope(const Fields& fields, LlamaConfig& config) {
  config.rope_theta = fields.Positive("rope_theta", config.rope_theta);
  const char* key = RopeKey(fields);
  if (key == nullptr) {
    return;
  }
  const Fields rope = fields.Object(key);
  config.rope_theta = rope.Positive("rope_theta", config.rope_theta);
  const char* type_key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(type_key, "default");
  if (type != "default" && type != "llama3") {
    rope.Refuse(type_key, "\"default\" or \"llama3\"");
  }
  rope.RefuseKeysExcept({"rope_type", "type", "rope_theta", "factor", "low_freq_factor",
                         "high_freq_factor", "original_max_position_embeddings"},
                        "only the keys of rope_type \"default\" and \"llama3\"");
  if (type == "default") {
    return;
  }
  // transformers prefers the key beside rope_scaling to the one inside.
  const char* original = "original_max_position_embeddings";
  config.rope_scaling = Llama3RopeScaling{
      rope.Positive("factor"), rope.Positive("low_freq_factor"), rope.Positive("high_freq_factor"),
      (fields.Has(original) ? fields : rope).Positive(original)};
  if (config.rope_scaling->high_freq_factor <= config.rope_scaling->low_freq_factor) {
    rope.Refuse("high_freq_factor", "a number greater than low_freq_factor");
  }
}

void ParseHeads(const Fields& fields, LlamaConfig& config) {
  config.num_attention_heads = fields.Dimension("num_attention_heads");
  config.num_key_value_heads =
      fields.DimensionOr(config.num_attention_heads, "num_key_value_heads");
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.Refuse("num_key_value_heads", "a divisor of num_attention_heads = " +
                                             std::to_string(config.num_attention_heads));
  }
  if (!fields.Has("head_dim") && config.hidden_size % config.num_attention_heads != 0) {
    fields.Refuse(
        "num_attention_heads",
        "a divisor of hidden_size = " + std::to_string(config.hidden_size) + " (or a head_dim)");
  }
  config.head_dim = fields.DimensionOr(config.hidden_size / config.num_attention_heads, "head_dim");
  if (config.head_dim > kMaxDimension / config.num_attention_heads) {
    fields.Refuse("head_dim", "at most " + std::to_string(kMaxDimension) +
                                  " / num_attention_heads = " +
                                  std::to_string(kMaxDimension / config.num_attention_heads));
  }
  if (config.head_dim % 2 != 0) {
    if (fields.Has("head_dim")) {
      fields.Refuse("head_dim", "an even number (rotary embedding turns pairs)");
    }
    fields.Refuse("num_attention_heads",
                  "an even quotient hidden_size / num_attention_heads, not " +
                      std::to_string(config.hidden_size) + " / " +
                      std::to_string(config.num_attention_heads) +
                      " (rotary embedding turns pairs)");
  }
}

/// Keys with which transformers computes something else. The oracle of llama_oracle_test.cc has a
/// case for every key that transformers knows.
void RefuseUnsupported(const Fields& fields) {
  if (fields.Text("model_type", "") != "llama") {
    fields.Refuse("model_type", "\"llama\"");
  }
  if (fields.Text("hidden_act", "silu") != "silu") {
    fields.Refuse("hidden_act", "\"silu\"");
  }
  if (fields.NumberOr(0.0, "attention_dropout") != 0.0) {
    fields.Refuse("attention_dropout", "0 (dropout is not supported)");
  }
  if (!fields.Flag("is_causal", true)) {
    fields.Refuse("is_causal", "true");
  }
  if (fields.Has("partial_rotary_factor")) {
    fields.Refuse("partial_rotary_factor", "no such key (the whole head is rotated)");
  }
  if (fields.Has("per_layer_config")) {
    fields.Refuse("per_layer_config", "no such key (all layers are alike)");
  }
  if (fields.Has("quantization_config")) {
    fields.Refuse("quantization_config", "no such key (weights are F32, BF16 or F16)");
  }
}

/// A negative index counts from the end of the vocabulary, as in torch.nn.Embedding.
std::optional<int64_t> ParsePaddingToken(const Fields& fields, int64_t vocab_size) {
  if (!fields.Has("pad_token_id")) {
    return std::nullopt;
  }
  const std::optional<int64_t> token = fields.Integer("pad_token_id");
  if (!token || *token < -vocab_size || *token >= vocab_size) {
    fields.Refuse("pad_token_id",
                  "null or a token of the vocabulary of " + std::to_string(vocab_size));
  }
  return *token < 0 ? *token + vocab_size : *token;
}

}  // namespace

LlamaConfig ParseLlamaConfig(const Json& document, const std::string& source) {
  if (!document.is_object()) {
    throw ConfigError(source + ": expected an object, got " + Excerpt(document));
  }
  const Fields fields(document, source);
  RefuseUnsupported(fields);
  LlamaConfig config;
  config.vocab_size = fields.Dimension("vocab_size");
  config.padding_token = ParsePaddingToken(fields, config.vocab_size);
  config.hidden_size = fields.Dimension("hidden_size");
  config.intermediate_size = fields.Dimension("intermediate_size");
  config.num_hidden_layers = fields.Dimension("num_hidden_layers", kMaxLayers);
  ParseHeads(fields, config);
  config.max_position_embeddings =
      fields.DimensionOr(config.max_position_embeddings, "max_position_embeddings", kMaxPositions);
  config.rms_norm_eps = fields.Positive("rms_norm_eps", config.rms_norm_eps);
  ParseRope(fields, config);
  config.attention_bias = fields.Flag("attention_bias", false);
  config.mlp_bias = fields.Flag("mlp_bias", false);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", false);
  config.initializer_range = fields.Positive("initializer_range", config.initializer_range);
  return config;
}

std::filesystem::path ModelConfigPath(const std::string& path) {
  std::filesystem::path file = path;
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    file /= "config.json";
  }
  return file;
}

LlamaConfig ReadLlamaConfig(const std::string& path) {
  const std::filesystem::path file = ModelConfigPath(path);
  return ParseLlamaConfig(ReadStrictJsonFile(file), file.string());
}

Json DescribeLlama(const LlamaConfig& config) {
  Json scaling = nullptr;
  if (config.rope_scaling) {
    scaling = {config.rope_scaling->factor, config.rope_scaling->low_freq_factor,
               config.rope_scaling->high_freq_factor,
               config.rope_scaling->original_max_position_embeddings};
  }
  return {{"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rms_norm_eps", config.rms_norm_eps},
          {"rope_theta", config.rope_theta},
          {"rope_scaling", std::move(scaling)},
          {"attention_bias", config.attention_bias},
          {"mlp_bias", config.mlp_bias},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"initializer_range", config.initializer_range},
          {"pad_token_id", config.padding_token ? Json(*config.padding_token) : Json(nullptr)}};
}

int64_t ParameterCount(const LlamaConfig& config) {
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key_value = config.num_key_value_heads * config.head_dim;
  int64_t block = 2 * config.hidden_size + 2 * config.hidden_size * (query + key_value) +
                  3 * config.hidden_size * config.intermediate_size;
  if (config.attention_bias) {
    block += query + 2 * key_value + config.hidden_size;
  }
  if (config.mlp_bias) {
    block += 2 * config.intermediate_size + config.hidden_size;
  }
  const int64_t embeddings =
      config.vocab_size * config.hidden_size * (config.tie_word_embeddings ? 1 : 2);
  return embeddings + config.num_hidden_layers * block + config.hidden_size;
}

}  // namespace fsdprun::worker
