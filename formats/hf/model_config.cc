#include "formats/hf/model_config.h"

#include <utility>

namespace fsdprun {
namespace {

struct Family {
  const char* model_type;
  const char* architecture;
  bool has_rope;
  bool ties_by_default;
};
constexpr Family kFamilies[] = {{"llama", "LlamaForCausalLM", true, false},
                                {"mistral", "MistralForCausalLM", true, false},
                                {"qwen2", "Qwen2ForCausalLM", true, false},
                                {"qwen3", "Qwen3ForCausalLM", true, false},
                                {"gpt2", "GPT2LMHeadModel", false, true}};
constexpr double kDefaultTheta = 10000;

/// nullptr: a family that is not known here, of which only what is there can be kept.
const Family* FamilyOf(const Json& config) {
  for (const Family& family : kFamilies) {
    if (config.value("model_type", "") == family.model_type) {
      return &family;
    }
  }
  return nullptr;
}

const Json* Field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// The embeddings' parameters as transformers 5 has them, from either spelling; of a file with both
/// it takes the old one, as do version 4 and fsdp-train.
Json RopeParameters(const Json& config, const std::string& source) {
  const Json* parameters = Field(config, "rope_parameters");
  const Json* scaling = Field(config, "rope_scaling");
  const Json* theta = Field(config, "rope_theta");
  for (const Json* object : {parameters, scaling}) {
    if (object != nullptr && !object->is_object()) {
      throw ConfigError(source + ": rope_parameters and rope_scaling: expected objects");
    }
  }
  const bool is_old = scaling != nullptr && !scaling->empty();
  Json rope = is_old ? *scaling : parameters != nullptr ? *parameters : Json::object();
  if (const Json* old = Field(rope, "type"); old != nullptr && !rope.contains("rope_type")) {
    rope["rope_type"] = *old;
  }
  rope.erase("type");
  if (Field(rope, "rope_theta") == nullptr) {
    rope.erase("rope_theta");
  }
  if (!rope.contains("rope_type")) {
    rope["rope_type"] = "default";
  }
  if (theta != nullptr && rope.contains("rope_theta") && rope.at("rope_theta") != *theta) {
    throw ConfigError(source + ": rope_theta is " + Excerpt(*theta) + " and in rope_parameters " +
                      Excerpt(rope.at("rope_theta")) + "; make them equal");
  }
  // At the end, from wherever it was read: what is complete stays as it is.
  const Json base = rope.contains("rope_theta") ? rope.at("rope_theta")
                    : theta != nullptr          ? *theta
                                                : Json(kDefaultTheta);
  rope.erase("rope_theta");
  rope["rope_theta"] = base;
  const Json* unread = is_old && parameters != nullptr ? Field(*parameters, "rope_theta") : nullptr;
  if (unread != nullptr && *unread != rope.at("rope_theta")) {
    throw ConfigError(source + ": rope_parameters.rope_theta is " + Excerpt(*unread) +
                      ", but beside rope_scaling it is not read, and the base is " +
                      Excerpt(rope.at("rope_theta")) + "; make them equal");
  }
  return rope;
}

void CompleteRope(Json& config, const std::string& source) {
  const Json rope = RopeParameters(config, source);
  Json scaling = rope;
  scaling.erase("rope_theta");
  config["rope_theta"] = rope.at("rope_theta");
  config["rope_scaling"] = rope.at("rope_type") == "default" ? Json() : scaling;
  config["rope_parameters"] = rope;
}

}  // namespace

Json CompleteModelConfig(Json config, const std::string& dtype, const std::string& source) {
  if (!config.is_object() || !config.contains("model_type") ||
      !config.at("model_type").is_string()) {
    throw ConfigError(source + ": expected the configuration of a model with a text model_type");
  }
  const Family* family = FamilyOf(config);
  if (family != nullptr && Field(config, "architectures") == nullptr) {
    config["architectures"] = {family->architecture};
  }
  const bool has_rope = Field(config, "rope_parameters") != nullptr ||
                        Field(config, "rope_scaling") != nullptr ||
                        Field(config, "rope_theta") != nullptr;
  if (has_rope || (family != nullptr && family->has_rope)) {
    CompleteRope(config, source);
  }
  config["tie_word_embeddings"] = TiesEmbeddings(config);
  config["torch_dtype"] = dtype;
  config["dtype"] = dtype;
  return config;
}

Json GenerationConfig(const Json& config) {
  Json generation = Json::object();
  generation["_from_model_config"] = true;
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (const Json* id = Field(config, name)) {
      generation[name] = *id;
    }
  }
  return generation;
}

bool TiesEmbeddings(const Json& config) {
  if (const Json* tied = Field(config, "tie_word_embeddings"); tied != nullptr) {
    return tied->is_boolean() && tied->get<bool>();
  }
  const Family* family = FamilyOf(config);
  return family != nullptr && family->ties_by_default;
}

}  // namespace fsdprun
