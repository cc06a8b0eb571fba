#include "fsdpctl/ckpt/titan_names.h"

#include <algorithm>

#include "formats/hf/model_config.h"

namespace fsdprun::ckpt {
namespace {

constexpr std::string_view kLayersPart = "layers.";
constexpr int64_t kHeadsMax = int64_t{1} << 22;

enum class Models { kBoth, kQwen3 };

struct TitanRow {
  std::string_view hf;
  std::string_view now;
  std::string_view version_02;
  Models models = Models::kBoth;
};

// A * is the number of a layer.
constexpr TitanRow kTitanRows[] = {
    {kEmbeddingName, "tok_embeddings.weight", "tok_embeddings.weight"},
    {"model.layers.*.self_attn.q_proj.weight", "layers.*.attention.qkv_linear.wq.weight",
     "layers.*.attention.wq.weight"},
    {"model.layers.*.self_attn.k_proj.weight", "layers.*.attention.qkv_linear.wk.weight",
     "layers.*.attention.wk.weight"},
    {"model.layers.*.self_attn.v_proj.weight", "layers.*.attention.qkv_linear.wv.weight",
     "layers.*.attention.wv.weight"},
    {"model.layers.*.self_attn.o_proj.weight", "layers.*.attention.wo.weight",
     "layers.*.attention.wo.weight"},
    {"model.layers.*.self_attn.q_norm.weight", "layers.*.attention.q_norm.weight",
     "layers.*.attention.q_norm.weight", Models::kQwen3},
    {"model.layers.*.self_attn.k_norm.weight", "layers.*.attention.k_norm.weight",
     "layers.*.attention.k_norm.weight", Models::kQwen3},
    {"model.layers.*.mlp.gate_proj.weight", "layers.*.feed_forward.w1.weight",
     "layers.*.feed_forward.w1.weight"},
    {"model.layers.*.mlp.down_proj.weight", "layers.*.feed_forward.w2.weight",
     "layers.*.feed_forward.w2.weight"},
    {"model.layers.*.mlp.up_proj.weight", "layers.*.feed_forward.w3.weight",
     "layers.*.feed_forward.w3.weight"},
    {"model.layers.*.input_layernorm.weight", "layers.*.attention_norm.weight",
     "layers.*.attention_norm.weight"},
    {"model.layers.*.post_attention_layernorm.weight", "layers.*.ffn_norm.weight",
     "layers.*.ffn_norm.weight"},
    {"model.norm.weight", "norm.weight", "norm.weight"},
    {kHeadName, "lm_head.weight", "output.weight"}};

/// A name with a * in place of the number of its layer, and that number.
struct LayerPattern {
  std::string text;
  std::string layer;
};

LayerPattern LayerPatternOf(std::string_view name) {
  const size_t begin = name.find(kLayersPart);
  if (begin == std::string_view::npos) {
    return {std::string(name), ""};
  }
  const size_t number = begin + kLayersPart.size();
  const size_t end = std::min(name.find_first_not_of("0123456789", number), name.size());
  if (end == number) {
    return {std::string(name), ""};
  }
  return {std::string(name.substr(0, number)) + "*" + std::string(name.substr(end)),
          std::string(name.substr(number, end - number))};
}

std::string WithLayer(std::string_view pattern, const std::string& layer) {
  std::string name(pattern);
  if (const size_t star = name.find('*'); star != std::string::npos) {
    name.replace(star, 1, layer);
  }
  return name;
}

int64_t HeadsIn(const Json& config, const char* key, int64_t missing, const std::string& source) {
  const auto found = config.find(key);
  if (missing != 0 && (found == config.end() || found->is_null())) {
    return missing;
  }
  if (found == config.end() || !found->is_number_unsigned() || *found < 1 || *found > kHeadsMax) {
    throw ConfigError(source + ": " + key + ": expected a whole number of 1 or more");
  }
  return found->get<int64_t>();
}

}  // namespace

TitanNames::TitanNames(const Json& config, const std::string& source) {
  if (!config.is_object() || !config.contains("model_type") ||
      !config.at("model_type").is_string()) {
    throw ConfigError(source + ": expected the configuration of a model with a text model_type");
  }
  model_type_ = config.at("model_type").get<std::string>();
  if (model_type_ != "llama" && model_type_ != "qwen3") {
    throw ConfigError(source + ": model_type is " + Excerpt(config.at("model_type")) +
                      ": torchtitan's names are known of \"llama\" and \"qwen3\"");
  }
  is_interleaved_ = model_type_ == "llama";
  has_tied_head_ = TiesEmbeddings(config);
  query_heads_ = HeadsIn(config, "num_attention_heads", 0, source);
  key_heads_ = HeadsIn(config, "num_key_value_heads", query_heads_, source);
}

std::optional<std::string> TitanNames::ToTitan(std::string_view name, TitanStyle style) const {
  const LayerPattern pattern = LayerPatternOf(name);
  for (const TitanRow& row : kTitanRows) {
    if (pattern.text == row.hf && (row.models == Models::kBoth || model_type_ == "qwen3")) {
      return WithLayer(style == TitanStyle::kNow ? row.now : row.version_02, pattern.layer);
    }
  }
  return std::nullopt;
}

std::optional<std::string> TitanNames::FromTitan(std::string_view name) const {
  const LayerPattern pattern = LayerPatternOf(name);
  for (const TitanRow& row : kTitanRows) {
    if ((pattern.text == row.now || pattern.text == row.version_02) &&
        (row.models == Models::kBoth || model_type_ == "qwen3")) {
      return WithLayer(row.hf, pattern.layer);
    }
  }
  return std::nullopt;
}

int64_t TitanNames::ReorderedHeads(std::string_view name) const {
  const std::string pattern = LayerPatternOf(name).text;
  if (!is_interleaved_) {
    return 0;
  }
  return pattern == "model.layers.*.self_attn.q_proj.weight"   ? query_heads_
         : pattern == "model.layers.*.self_attn.k_proj.weight" ? key_heads_
                                                               : 0;
}

}  // namespace fsdprun::ckpt
