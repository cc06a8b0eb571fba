#include "formats/hf/model_config.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun {
namespace {

Json Complete(const std::string& text) {
  return CompleteModelConfig(Json::parse(text), "bfloat16", "config.json");
}

TEST(ModelConfigTest, BadConfigurationsAreRefused) {
  for (const char* text :
       {"[]", "{}", R"({"model_type": 1})", R"({"model_type": "llama", "rope_scaling": 3})",
        R"({"model_type": "llama", "rope_theta": 1, "rope_parameters": {"rope_theta": 2}})",
        R"({"model_type": "llama", "rope_theta": 1, "rope_scaling": {"type": "linear"},
            "rope_parameters": {"rope_theta": 2}})"}) {
    EXPECT_THROW(Complete(text), ConfigError) << text;
  }
}

TEST(ModelConfigTest, RopeGetsBothSpellings) {
  const Json from_4 = Complete(R"({"model_type": "llama", "rope_theta": 500000.0,
      "rope_scaling": {"type": "linear", "factor": 2.0}})");
  const Json from_5 = Complete(R"({"model_type": "llama",
      "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0}})");
  for (const Json& config : {from_4, from_5}) {
    EXPECT_EQ(Complete(config.dump()), config) << "with the order of its keys";
    EXPECT_EQ(config.at("rope_theta"), 500000.0);
    EXPECT_EQ(nlohmann::json(config.at("rope_scaling")),
              nlohmann::json({{"rope_type", "linear"}, {"factor", 2.0}}));
    EXPECT_EQ(nlohmann::json(config.at("rope_parameters")),
              nlohmann::json({{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 500000.0}}));
  }
  const Json plain = Complete(R"({"model_type": "qwen3", "rope_scaling": null})");
  EXPECT_EQ(plain.at("rope_theta"), 10000.0);
  EXPECT_TRUE(plain.at("rope_scaling").is_null());
  EXPECT_EQ(plain.at("rope_parameters").at("rope_type"), "default");
}

TEST(ModelConfigTest, OfBothRopeSpellingsTheOldOneCounts) {
  const Json config = Complete(R"({"model_type": "llama", "rope_scaling": {"type": "linear"},
      "rope_parameters": {"rope_type": "default"}})");
  EXPECT_EQ(config.at("rope_parameters").at("rope_type"), "linear");
  EXPECT_EQ(config.at("rope_scaling").at("rope_type"), "linear");
  const Json empty = Complete(R"({"model_type": "llama", "rope_scaling": {},
      "rope_parameters": {"rope_type": "linear"}})");
  EXPECT_EQ(empty.at("rope_parameters").at("rope_type"), "linear");
}

TEST(ModelConfigTest, OtherFieldsAreKeptAndCompleted) {
  const Json config = Complete(R"({"model_type": "gpt2", "n_embd": 8})");
  EXPECT_EQ(config.at("n_embd"), 8);
  EXPECT_FALSE(config.contains("rope_theta"));
  EXPECT_EQ(config.at("architectures"), Json({"GPT2LMHeadModel"}));
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(config.at("dtype"), "bfloat16");
  EXPECT_EQ(config.at("tie_word_embeddings"), true);
  EXPECT_EQ(Complete(R"({"model_type": "llama"})").at("tie_word_embeddings"), false);
}

TEST(ModelConfigTest, GenerationHasTheSpecialTokens) {
  const Json generation =
      GenerationConfig(Json::parse(R"({"bos_token_id": 1, "eos_token_id": [2, 3],
                                       "pad_token_id": null, "vocab_size": 9})"));
  EXPECT_EQ(generation.at("bos_token_id"), 1);
  EXPECT_EQ(generation.at("eos_token_id"), Json::parse("[2, 3]"));
  EXPECT_FALSE(generation.contains("pad_token_id"));
  EXPECT_FALSE(generation.contains("vocab_size"));
}

}  // namespace
}  // namespace fsdprun
