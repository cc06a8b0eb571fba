#include "worker/models/llama_config.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

Json GoodDocument() {
  return Json::parse(R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 1, "torch_dtype": "float32"})");
}

std::string Refusal(const Json& document) {
  try {
    ParseLlamaConfig(document, "config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LlamaConfigTest, DefaultsAreHuggingFaces) {
  const LlamaConfig config = ParseLlamaConfig(GoodDocument(), "config.json");
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.rope_scaling.has_value());
  Json without = GoodDocument();
  without.erase("num_key_value_heads");
  EXPECT_EQ(ParseLlamaConfig(without, "c").num_key_value_heads, 4);
}

TEST(LlamaConfigTest, EveryRequiredKeyIsNamedWhenMissing) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    Json document = GoodDocument();
    document.erase(key);
    EXPECT_EQ(Refusal(document),
              std::string("config.json: ") + key + " is missing: expected an integer >= 1");
  }
}

TEST(LlamaConfigTest, BadValuesAreNamed) {
  const std::vector<std::tuple<std::string, Json, std::string>> cases = {
      {"model_type", "gpt2", "model_type = \"gpt2\": expected \"llama\""},
      {"hidden_act", "gelu", "hidden_act = \"gelu\": expected \"silu\""},
      {"vocab_size", 0, "vocab_size = 0: expected an integer >= 1"},
      {"hidden_size", -64, "hidden_size = -64: expected an integer >= 1"},
      {"hidden_size", "64", "hidden_size = \"64\": expected an integer >= 1"},
      {"hidden_size", 66,
       "num_attention_heads = 4: expected a divisor of hidden_size = 66 (or a head_dim)"},
      {"num_hidden_layers", 2.5, "num_hidden_layers = 2.5: expected an integer >= 1"},
      {"num_key_value_heads", 3,
       "num_key_value_heads = 3: expected a divisor of num_attention_heads = 4"},
      {"head_dim", 15, "head_dim = 15: expected an even head_dim"},
      {"rms_norm_eps", 0, "rms_norm_eps = 0: expected a number > 0"},
      {"attention_bias", 1, "attention_bias = 1: expected true or false"},
      {"attention_dropout", 0.1, "attention_dropout = 0.1: expected 0"},
      {"rope_scaling", Json::parse(R"({"type": "yarn"})"),
       "rope_scaling.type = \"yarn\": expected \"default\" or \"llama3\""},
      {"rope_scaling", Json::parse(R"({"rope_type": "llama3", "factor": 8})"),
       "rope_scaling.low_freq_factor is missing: expected a number > 0"},
      {"rope_scaling", "linear", "rope_scaling = \"linear\": expected an object"},
      {"rope_parameters", Json::parse(R"({"full_attention": {"rope_type": "default"}})"),
       "rope_parameters.full_attention = {\"rope_type\":\"default\"}: expected only the keys of"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor = 0.5: expected no such key"},
      {"is_causal", false, "is_causal = false: expected true"},
      {"per_layer_config", Json::object(), "per_layer_config = {}: expected no such key"},
      {"quantization_config", Json::object(), "quantization_config = {}: expected no such key"},
      {"pad_token_id", 256,
       "pad_token_id = 256: expected null or a token of the vocabulary of 256"},
      {"pad_token_id", -257, "pad_token_id = -257: expected null or a token"},
      {"pad_token_id", 1.5, "pad_token_id = 1.5: expected null or a token"},
      {"pad_token_id", Json::parse("18446744073709551615"), "pad_token_id = 18446744073709551615"},
      {"vocab_size", Json::parse("18446744073709551615"), "vocab_size = 18446744073709551615"},
      {"num_hidden_layers", int64_t{1} << 31, "num_hidden_layers = 2147483648: expected at most"},
      {"head_dim", int64_t{1} << 22, "num_attention_heads = 4: expected num_attention_heads *"},
  };
  for (const auto& [key, value, expected] : cases) {
    Json document = GoodDocument();
    document[key] = value;
    EXPECT_NE(Refusal(document).find("config.json: " + expected), std::string::npos)
        << Refusal(document);
  }
  EXPECT_EQ(Refusal(Json::array()), "config.json: expected an object, got []");
}

Json Llama3Scaling() {
  return Json::parse(R"({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8,
    "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
}

TEST(LlamaConfigTest, RopeParametersWinOverTheThetaBesideThem) {
  Json document = GoodDocument();
  document["rope_theta"] = 10000.0;
  document["rope_parameters"] = Llama3Scaling();
  const LlamaConfig config = ParseLlamaConfig(document, "c");
  EXPECT_EQ(config.rope_theta, 500000);
  ASSERT_TRUE(config.rope_scaling.has_value());
  EXPECT_EQ(config.rope_scaling->factor, 8);
}

TEST(LlamaConfigTest, RopeScalingWinsOverRopeParametersUnlessEmpty) {
  Json document = GoodDocument();
  document["rope_scaling"] = Llama3Scaling();
  document["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 700.0}};
  EXPECT_EQ(ParseLlamaConfig(document, "c").rope_theta, 500000);
  EXPECT_TRUE(ParseLlamaConfig(document, "c").rope_scaling.has_value());
  document["rope_scaling"] = Json::object();
  EXPECT_EQ(ParseLlamaConfig(document, "c").rope_theta, 700);
  EXPECT_FALSE(ParseLlamaConfig(document, "c").rope_scaling.has_value());
}

TEST(LlamaConfigTest, OriginalLengthBesideRopeScalingWins) {
  Json document = GoodDocument();
  document["rope_scaling"] = Llama3Scaling();
  document["original_max_position_embeddings"] = 64;
  EXPECT_EQ(ParseLlamaConfig(document, "c").rope_scaling->original_max_position_embeddings, 64);
}

TEST(LlamaConfigTest, PaddingTokenCountsFromTheEndWhenNegative) {
  Json document = GoodDocument();
  EXPECT_FALSE(ParseLlamaConfig(document, "c").padding_token.has_value());
  document["pad_token_id"] = nullptr;
  EXPECT_FALSE(ParseLlamaConfig(document, "c").padding_token.has_value());
  document["pad_token_id"] = 5;
  EXPECT_EQ(ParseLlamaConfig(document, "c").padding_token, 5);
  document["pad_token_id"] = -1;
  EXPECT_EQ(ParseLlamaConfig(document, "c").padding_token, 255);
}

TEST(LlamaConfigTest, UnreadableFileIsNamed) {
  try {
    ReadLlamaConfig("/nonexistent/model");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "cannot read /nonexistent/model: No such file or directory");
  }
}

}  // namespace
}  // namespace fsdprun::worker
