#include "formats/models/model_flops.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun {
namespace {

ModelConfig ModelOf(const std::string& text) {
  return ParseModelConfig(ParseStrictJson(text, "f"), "f");
}

std::string Llama(const std::string& more) {
  return R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 16, "intermediate_size": 24,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": 64, "rms_norm_eps": 1e-5)" +
         more + "}";
}

// Of a layer: queries and output 16 x 16 each, keys and values 8 x 16 each, three of 24 x 16.
constexpr double kLayer = 2 * 256 + 2 * 128 + 3 * 384;

TEST(ModelFlopsTest, MatricesCountSixTimesAndAttentionTwelveTimesItsWidth) {
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(ModelOf(Llama("")), 32),
                   6 * (2 * kLayer + 1600) + 12 * 2 * 16 * 32);
}

TEST(ModelFlopsTest, TiedHeadIsMultipliedWithAllTheSame) {
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(ModelOf(Llama(R"(, "tie_word_embeddings": true)")), 32),
                   ModelFlopsPerToken(ModelOf(Llama("")), 32));
}

TEST(ModelFlopsTest, WindowsLimitWhatATokenSees) {
  const ModelConfig mistral = ModelOf(
      R"({"model_type": "mistral", "vocab_size": 100, "hidden_size": 16, "intermediate_size": 24,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 64, "sliding_window": 8})");
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(mistral, 32), 6 * (2 * kLayer + 1600) + 12 * 2 * 16 * 8);
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(mistral, 4), 6 * (2 * kLayer + 1600) + 12 * 2 * 16 * 4);
}

TEST(ModelFlopsTest, PositionsOfGpt2AreLookedUp) {
  const ModelConfig gpt2 = ModelOf(
      R"({"model_type": "gpt2", "vocab_size": 100, "n_embd": 16, "n_layer": 2, "n_head": 4,
          "n_positions": 64})");
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(gpt2, 32), 6 * (2 * 12.0 * 256 + 1600) + 12 * 2 * 16 * 32);
}

}  // namespace
}  // namespace fsdprun
