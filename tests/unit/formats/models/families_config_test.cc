// What the families' config.json say in other ways than Llama's (model_config_test.cc).

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "formats/models/model_config.h"

namespace fsdprun {
namespace {

Json DocumentOf(const std::string& family) {
  if (family == "gpt2") {
    return Json::parse(R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2,
      "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0})");
  }
  return {{"model_type", family},   {"vocab_size", 256},       {"hidden_size", 128},
          {"num_hidden_layers", 2}, {"intermediate_size", 96}, {"num_attention_heads", 32}};
}

ModelConfig Parse(const Json& document) { return ParseModelConfig(document, "config.json"); }

DecoderConfig ParseNetwork(const Json& document) {
  return std::get<DecoderConfig>(Parse(document).network);
}

std::string FamilyRefusal(const Json& document) {
  try {
    Parse(document);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

struct BadFamilyValue {
  std::string family;
  std::string key;
  Json value;
  std::string expectation;
};

const std::string kTypes =
    "2 (num_hidden_layers) strings \"full_attention\" or \"sliding_attention\"";
const std::string kAtMost = "at most 4194304";

const std::vector<BadFamilyValue> kBadFamilyValues = {
    {"mistral", "sliding_window", 0, "an integer >= 1"},
    {"mistral", "sliding_window", "16", "an integer >= 1"},
    {"mistral", "sliding_window", int64_t{1} << 32, "at most 2147483648"},
    {"qwen2", "use_sliding_window", 1, "true or false"},
    {"qwen2", "layer_types", "full_attention", kTypes},
    {"qwen2", "layer_types", Json::array({"full_attention"}), kTypes},
    {"qwen3", "layer_types", Json::array({"full_attention", 7}), kTypes},
    {"qwen3", "layer_types", Json::array({"full_attention", "sliding_attention"}),
     "no \"sliding_attention\", as there is no window (use_sliding_window, sliding_window)"},
    {"qwen3", "head_dim", -128, "an integer >= 1"},
    {"qwen3", "head_dim", 1 << 20, "at most 4194304 / num_attention_heads = 131072"},
    {"qwen3", "attention_bias", "yes", "true or false"},
    {"gpt2", "vocab_size", -1, "an integer >= 1"},
    {"gpt2", "n_embd", 0, "an integer >= 1"},
    {"gpt2", "n_embd", (1 << 20) + 1, "at most 1048576"},
    {"gpt2", "n_layer", 8193, "at most 8192"},
    {"gpt2", "n_head", 3, "a divisor of n_embd = 64"},
    {"gpt2", "n_head", "4", "an integer >= 1"},
    {"gpt2", "n_inner", -3, "an integer >= 1"},
    {"gpt2", "n_inner", (1 << 22) + 1, kAtMost},
    {"gpt2", "n_positions", (1 << 22) + 1, kAtMost},
    {"gpt2", "n_positions", 1.5, "an integer >= 1"},
    {"gpt2", "layer_norm_epsilon", 0, "a number > 0"},
    {"gpt2", "initializer_range", -1, "a number > 0"},
    {"gpt2", "activation_function", "relu", "\"gelu_new\""},
    {"gpt2", "activation_function", 7, "a string"},
    {"gpt2", "attn_pdrop", "0.1", "a number"},
    {"gpt2", "scale_attn_weights", 1, "true or false"},
    {"gpt2", "scale_attn_by_inverse_layer_idx", 1, "true or false"},
    {"gpt2", "add_cross_attention", true, "false"},
    {"gpt2", "tie_word_embeddings", "true", "true or false"},
    {"gpt2", "hidden_size", 64, "the key n_embd in its place"},
    {"gpt2", "max_position_embeddings", 64, "the key n_positions in its place"},
    {"gpt2", "num_attention_heads", 4, "the key n_head in its place"},
    {"gpt2", "num_hidden_layers", 2, "the key n_layer in its place"},
    {"gpt2", "quantization_config", Json::object(), "no such key (weights are F32, BF16 or F16)"},
};

TEST(FamiliesConfigTest, BadValueIsRefusedByKeyAndValue) {
  for (const BadFamilyValue& bad : kBadFamilyValues) {
    Json document = DocumentOf(bad.family);
    document[bad.key] = bad.value;
    EXPECT_EQ(FamilyRefusal(document), "config.json: " + bad.key + " = " + bad.value.dump() +
                                           ": expected " + bad.expectation)
        << bad.family;
  }
}

TEST(FamiliesConfigTest, EveryRequiredKeyIsNamedWhenMissing) {
  for (const std::string family : {"qwen2", "qwen3", "mistral", "gpt2"}) {
    const Json whole = DocumentOf(family);
    for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "n_embd", "n_layer", "n_head"}) {
      Json document = whole;
      if (document.erase(key) != 0) {
        EXPECT_EQ(FamilyRefusal(document),
                  std::string("config.json: ") + key + " is missing: expected an integer >= 1");
      }
    }
  }
}

TEST(FamiliesConfigTest, SlidingLayersStartWhereTheKeySays) {
  Json document = DocumentOf("qwen2");
  document["use_sliding_window"] = true;
  for (const Json& value : {Json(-1), Json(1.5), Json("1")}) {
    document["max_window_layers"] = value;
    EXPECT_EQ(FamilyRefusal(document),
              "config.json: max_window_layers = " + value.dump() + ": expected an integer >= 0");
  }
  document["max_window_layers"] = 1;
  EXPECT_EQ(ParseNetwork(document).layer_windows, (std::vector<int64_t>{0, 4096}));
  document["sliding_window"] = 16;
  document["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(ParseNetwork(document).layer_windows, (std::vector<int64_t>{16, 0}));
  document["layer_types"] = nullptr;
  document["max_window_layers"] = 2;
  EXPECT_TRUE(ParseNetwork(document).layer_windows.empty());
}

TEST(FamiliesConfigTest, DefaultsAreHuggingFaces) {
  EXPECT_EQ(ParseNetwork(DocumentOf("mistral")).layer_windows, (std::vector<int64_t>{4096, 4096}));
  EXPECT_EQ(ParseNetwork(DocumentOf("mistral")).num_key_value_heads, 8);
  EXPECT_EQ(Parse(DocumentOf("mistral")).max_position_embeddings, 131072);
  EXPECT_EQ(ParseNetwork(DocumentOf("qwen2")).num_key_value_heads, 32);
  EXPECT_EQ(ParseNetwork(DocumentOf("qwen2")).head_dim, 4);
  EXPECT_EQ(Parse(DocumentOf("qwen2")).max_position_embeddings, 32768);
  EXPECT_EQ(ParseNetwork(DocumentOf("qwen3")).head_dim, 128);
  const auto gpt2 = std::get<Gpt2Config>(Parse(DocumentOf("gpt2")).network);
  EXPECT_EQ(gpt2.n_inner, 256);
  EXPECT_EQ(gpt2.n_positions, 1024);
  EXPECT_TRUE(Parse(DocumentOf("gpt2")).has_tied_head());
}

TEST(FamiliesConfigTest, NumberOfKeyValueHeadsThatIsMissingAndDoesNotFitIsSaid) {
  Json document = DocumentOf("mistral");
  document["num_attention_heads"] = 4;
  EXPECT_EQ(FamilyRefusal(document),
            "config.json: num_key_value_heads is missing: expected a divisor of "
            "num_attention_heads = 4 (missing, it is 8)");
  document["num_key_value_heads"] = nullptr;
  EXPECT_EQ(ParseNetwork(document).num_key_value_heads, 4);
}

TEST(FamiliesConfigTest, DropoutOfGpt2IsAWarning) {
  Json document = DocumentOf("gpt2");
  EXPECT_TRUE(Parse(document).warnings.empty());
  document.erase("resid_pdrop");  // The default is 0.1.
  document["attn_pdrop"] = 0.5;
  EXPECT_EQ(Parse(document).warnings,
            std::vector<std::string>{"the model's resid_pdrop, attn_pdrop: training has no dropout "
                                     "and takes them for 0"});
}

TEST(FamiliesConfigTest, DescriptionTellsFamiliesAndSettingsApart) {
  EXPECT_NE(Parse(DocumentOf("qwen2")).description, Parse(DocumentOf("qwen3")).description);
  for (const char* key : {"scale_attn_weights", "scale_attn_by_inverse_layer_idx"}) {
    Json document = DocumentOf("gpt2");
    document[key] = !Parse(document).description.at(key).get<bool>();
    EXPECT_NE(Parse(document).description, Parse(DocumentOf("gpt2")).description);
  }
}

}  // namespace
}  // namespace fsdprun
