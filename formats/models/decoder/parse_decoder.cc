#include "formats/models/decoder/parse_decoder.h"

#include <optional>
#include <utility>

namespace fsdprun {
namespace {

/// rope_parameters is the newer spelling and holds theta too; rope_scaling the older, whose files
/// may say "type". A file with both means rope_scaling, as for every version of transformers.
const char* RopeKey(const Fields& fields) {
  if (fields.Has("rope_scaling") && !fields.Object("rope_scaling").IsEmpty()) {
    return "rope_scaling";
  }
  return fields.Has("rope_parameters") ? "rope_parameters" : nullptr;
}

void ParseRope(const Fields& fields, DecoderConfig& config) {
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

int64_t ParseHeadDim(const Fields& fields, const DecoderConfig& config, int64_t missing) {
  if (fields.Has("head_dim")) {
    return fields.Dimension("head_dim");
  }
  if (missing != 0) {
    return missing;
  }
  if (config.hidden_size % config.num_attention_heads != 0) {
    fields.Refuse("num_attention_heads",
                  "a divisor of hidden_size = " + std::to_string(config.hidden_size));
  }
  return config.hidden_size / config.num_attention_heads;
}

void ParseHeads(const Fields& fields, const DecoderDefaults& defaults, DecoderConfig& config) {
  config.num_attention_heads = fields.Dimension("num_attention_heads");
  const bool is_as_many = fields.IsNull("num_key_value_heads") || defaults.num_key_value_heads == 0;
  config.num_key_value_heads =
      fields.DimensionOr(is_as_many ? config.num_attention_heads : defaults.num_key_value_heads,
                         "num_key_value_heads");
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    const std::string missing =
        fields.Has("num_key_value_heads")
            ? ""
            : " (missing, it is " + std::to_string(config.num_key_value_heads) + ")";
    fields.Refuse("num_key_value_heads", "a divisor of num_attention_heads = " +
                                             std::to_string(config.num_attention_heads) + missing);
  }
  config.head_dim = ParseHeadDim(fields, config, defaults.head_dim);
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

/// The oracle of models_oracle_test.cc has a case for every key that transformers knows.
void RefuseUnsupported(const Fields& fields) {
  if (fields.Text("hidden_act", "silu") != "silu") {
    fields.Refuse("hidden_act", "\"silu\"");
  }
  if (fields.NumberOr(0.0, "attention_dropout") != 0.0) {
    fields.Refuse("attention_dropout", "0 (dropout is not supported)");
  }
  if (!fields.Flag("is_causal", true)) {
    fields.Refuse("is_causal", "true");
  }
  fields.RefuseIfPresent("partial_rotary_factor", "no such key (the whole head is rotated)");
  fields.RefuseIfPresent("per_layer_config", "no such key (all layers are alike)");
  fields.RefuseIfPresent("quantization_config", "no such key (weights are F32, BF16 or F16)");
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

Json DescriptionOf(const std::string& model_type, const DecoderConfig& config) {
  Json scaling = nullptr;
  if (config.rope_scaling) {
    scaling = {config.rope_scaling->factor, config.rope_scaling->low_freq_factor,
               config.rope_scaling->high_freq_factor,
               config.rope_scaling->original_max_position_embeddings};
  }
  return {{"model_type", model_type},
          {"vocab_size", config.vocab_size},
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
          {"attention_bias", config.has_qkv_bias},
          {"mlp_bias", config.mlp_bias},
          {"layer_windows", config.layer_windows.empty() ? Json() : Json(config.layer_windows)},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"initializer_range", config.initializer_range},
          {"pad_token_id", config.padding_token ? Json(*config.padding_token) : Json(nullptr)}};
}

/// In the order in which DecoderAttention registers them.
void AddAttention(const DecoderConfig& config, const std::string& prefix,
                  std::vector<WeightShape>& weights) {
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key_value = config.num_key_value_heads * config.head_dim;
  const auto add = [&](const char* name, int64_t out, int64_t in, bool has_bias) {
    weights.push_back({prefix + name + ".weight", {out, in}});
    if (has_bias) {
      weights.push_back({prefix + name + ".bias", {out}});
    }
  };
  add("q_proj", query, config.hidden_size, config.has_qkv_bias);
  add("k_proj", key_value, config.hidden_size, config.has_qkv_bias);
  add("v_proj", key_value, config.hidden_size, config.has_qkv_bias);
  add("o_proj", config.hidden_size, query, config.has_output_bias);
  if (config.has_head_norms) {
    weights.push_back({prefix + "q_norm.weight", {config.head_dim}});
    weights.push_back({prefix + "k_norm.weight", {config.head_dim}});
  }
}

void AddMlp(const DecoderConfig& config, const std::string& prefix,
            std::vector<WeightShape>& weights) {
  const auto add = [&](const char* name, int64_t out, int64_t in) {
    weights.push_back({prefix + name + ".weight", {out, in}});
    if (config.mlp_bias) {
      weights.push_back({prefix + name + ".bias", {out}});
    }
  };
  add("gate_proj", config.intermediate_size, config.hidden_size);
  add("up_proj", config.intermediate_size, config.hidden_size);
  add("down_proj", config.hidden_size, config.intermediate_size);
}

std::vector<WeightShape> WeightsOf(const DecoderConfig& config) {
  std::vector<WeightShape> weights;
  weights.push_back({"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string block = "model.layers." + std::to_string(i) + ".";
    AddAttention(config, block + "self_attn.", weights);
    AddMlp(config, block + "mlp.", weights);
    weights.push_back({block + "input_layernorm.weight", {config.hidden_size}});
    weights.push_back({block + "post_attention_layernorm.weight", {config.hidden_size}});
  }
  weights.push_back({"model.norm.weight", {config.hidden_size}});
  if (!config.tie_word_embeddings) {
    weights.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}});
  }
  return weights;
}

}  // namespace

DecoderConfig ParseDecoder(const Fields& fields, const DecoderDefaults& defaults) {
  RefuseUnsupported(fields);
  DecoderConfig config;
  config.vocab_size = fields.Dimension("vocab_size");
  config.padding_token = ParsePaddingToken(fields, config.vocab_size);
  config.hidden_size = fields.Dimension("hidden_size");
  config.intermediate_size = fields.Dimension("intermediate_size");
  config.num_hidden_layers = fields.Dimension("num_hidden_layers", kMaxLayers);
  ParseHeads(fields, defaults, config);
  config.max_position_embeddings = fields.DimensionOr(defaults.max_position_embeddings,
                                                      "max_position_embeddings", kMaxPositions);
  config.rms_norm_eps = fields.Positive("rms_norm_eps", config.rms_norm_eps);
  ParseRope(fields, config);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", false);
  config.initializer_range = fields.Positive("initializer_range", config.initializer_range);
  return config;
}

ModelConfig DescribeDecoder(const std::string& model_type, const DecoderConfig& config) {
  ModelConfig model;
  model.model_type = model_type;
  model.vocab_size = config.vocab_size;
  model.max_position_embeddings = config.max_position_embeddings;
  model.names = {"model.",
                 "model.embed_tokens.weight",
                 config.tie_word_embeddings ? "lm_head.weight" : "",
                 {".rotary_emb.inv_freq"}};
  model.weights = WeightsOf(config);
  model.description = DescriptionOf(model_type, config);
  model.network = config;
  return model;
}

}  // namespace fsdprun
