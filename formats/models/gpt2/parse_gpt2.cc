#include "formats/models/gpt2/parse_gpt2.h"

#include <utility>

namespace fsdprun {
namespace {

constexpr double kDefaultDropout = 0.1;
constexpr int64_t kInnerFactor = 4;

/// transformers takes the names of other families for its own, too; whose files have them is not
/// known, so that a file with both would be read by guessing.
constexpr std::pair<const char*, const char*> kOtherNames[] = {
    {"hidden_size", "n_embd"},
    {"max_position_embeddings", "n_positions"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"}};

void RefuseOtherGpt2(const Fields& fields) {
  for (const auto& names : kOtherNames) {
    fields.RefuseIfPresent(names.first, std::string("the key ") + names.second + " in its place");
  }
  if (fields.Text("activation_function", "gelu_new") != "gelu_new") {
    fields.Refuse("activation_function", "\"gelu_new\"");
  }
  if (fields.Flag("add_cross_attention", false)) {
    fields.Refuse("add_cross_attention", "false");
  }
  if (!fields.Flag("is_causal", true)) {
    fields.Refuse("is_causal", "true");
  }
  fields.RefuseIfPresent("per_layer_config", "no such key (all layers are alike)");
  fields.RefuseIfPresent("quantization_config", "no such key (weights are F32, BF16 or F16)");
}

/// Every published file has dropout, which no use of the model but its pretraining needs: a
/// warning.
std::vector<std::string> DropoutWarnings(const Fields& fields) {
  std::string keys;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    if (fields.NumberOr(kDefaultDropout, key) != 0.0) {
      keys += (keys.empty() ? "" : ", ") + std::string(key);
    }
  }
  if (keys.empty()) {
    return {};
  }
  return {"the model's " + keys + ": training has no dropout and takes them for 0"};
}

Json DescriptionOf(const Gpt2Config& config) {
  return {{"model_type", "gpt2"},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.n_positions},
          {"n_embd", config.n_embd},
          {"n_layer", config.n_layer},
          {"n_head", config.n_head},
          {"n_inner", config.n_inner},
          {"layer_norm_epsilon", config.layer_norm_epsilon},
          {"initializer_range", config.initializer_range},
          {"scale_attn_weights", config.scale_attn_weights},
          {"scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx},
          {"tie_word_embeddings", config.tie_word_embeddings}};
}

std::vector<WeightShape> WeightsOf(const Gpt2Config& config) {
  std::vector<WeightShape> weights;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const int64_t out = shape.back();
    weights.push_back({name + ".weight", std::move(shape)});
    weights.push_back({name + ".bias", {out}});
  };
  const int64_t width = config.n_embd;
  weights.push_back({"transformer.wte.weight", {config.vocab_size, width}});
  weights.push_back({"transformer.wpe.weight", {config.n_positions, width}});
  for (int64_t i = 0; i < config.n_layer; ++i) {
    const std::string block = "transformer.h." + std::to_string(i) + ".";
    add(block + "ln_1", {width});
    add(block + "attn.c_attn", {width, 3 * width});
    add(block + "attn.c_proj", {width, width});
    add(block + "ln_2", {width});
    add(block + "mlp.c_fc", {width, config.n_inner});
    add(block + "mlp.c_proj", {config.n_inner, width});
  }
  add("transformer.ln_f", {width});
  if (!config.tie_word_embeddings) {
    weights.push_back({"lm_head.weight", {config.vocab_size, width}});
  }
  return weights;
}

}  // namespace

ModelConfig ParseGpt2(const Fields& fields) {
  RefuseOtherGpt2(fields);
  Gpt2Config config;
  config.vocab_size = fields.Dimension("vocab_size");
  config.n_embd = fields.Dimension("n_embd", kMaxDimension / kInnerFactor);
  config.n_layer = fields.Dimension("n_layer", kMaxLayers);
  config.n_head = fields.Dimension("n_head");
  if (config.n_embd % config.n_head != 0) {
    fields.Refuse("n_head", "a divisor of n_embd = " + std::to_string(config.n_embd));
  }
  config.n_inner = fields.DimensionOr(kInnerFactor * config.n_embd, "n_inner");
  // Positions are weights here.
  config.n_positions = fields.DimensionOr(config.n_positions, "n_positions");
  config.layer_norm_epsilon = fields.Positive("layer_norm_epsilon", config.layer_norm_epsilon);
  config.initializer_range = fields.Positive("initializer_range", config.initializer_range);
  config.scale_attn_weights = fields.Flag("scale_attn_weights", true);
  config.scale_attn_by_inverse_layer_idx = fields.Flag("scale_attn_by_inverse_layer_idx", false);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", true);
  ModelConfig model = DescribeGpt2(config);
  model.warnings = DropoutWarnings(fields);
  return model;
}

ModelConfig DescribeGpt2(const Gpt2Config& config) {
  ModelConfig model;
  model.model_type = "gpt2";
  model.vocab_size = config.vocab_size;
  model.max_position_embeddings = config.n_positions;
  // Files of old versions have the causal mask of each block.
  model.names = {"transformer.",
                 "transformer.wte.weight",
                 config.tie_word_embeddings ? "lm_head.weight" : "",
                 {".attn.bias", ".attn.masked_bias"}};
  model.weights = WeightsOf(config);
  model.description = DescriptionOf(config);
  model.network = config;
  return model;
}

}  // namespace fsdprun
