#include "formats/models/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "formats/models/decoder/parse_decoder.h"
#include "formats/models/gpt2/parse_gpt2.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string RefusalOf(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

ModelConfig SmallDecoder() {
  DecoderConfig config;
  config.vocab_size = 16;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.has_qkv_bias = config.has_head_norms = true;
  return DescribeDecoder("llama", config);
}

ModelConfig SmallGpt2() {
  Gpt2Config config;
  config.vocab_size = 16;
  config.n_embd = 8;
  config.n_inner = 32;
  config.n_layer = 1;
  config.n_head = 2;
  config.n_positions = 4;
  return DescribeGpt2(config);
}

LoraConfig Targeting(const std::vector<std::string>& targets) { return {4, 16, targets}; }

TEST(LoraConfigTest, TargetsThatAreNoLayersAreRefusedWithThoseThatAre) {
  for (const char* target : {"q_prj", "proj", "lm_head", "embed_tokens", "norm", "_proj", ""}) {
    const std::string refusal = RefusalOf([&] {
      AdaptedLayers(SmallDecoder(), Targeting({"q_proj", target}));
    });
    EXPECT_THAT(refusal, HasSubstr("lora.targets has \"" + std::string(target) + "\""));
    EXPECT_THAT(refusal,
                HasSubstr("down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"));
  }
  EXPECT_THAT(RefusalOf([] { AdapterWeights(SmallGpt2(), Targeting({"q_proj"})); }),
              HasSubstr("c_attn, c_fc, c_proj; or one with what stands before it, e.g. "
                        "\"transformer.h.0.attn.c_attn\""));
}

TEST(LoraConfigTest, ATargetIsTheEndOfAName) {
  EXPECT_THAT(AdaptedLayers(SmallDecoder(), Targeting({"v_proj"})),
              ElementsAre("model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.v_proj"));
  EXPECT_THAT(
      AdaptedLayers(SmallDecoder(), Targeting({"1.mlp.up_proj", "model.layers.0.mlp.down_proj"})),
      ElementsAre("model.layers.0.mlp.down_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_THAT(AdaptedLayers(SmallGpt2(), Targeting({"attn.c_proj"})),
              ElementsAre("transformer.h.0.attn.c_proj"));
  EXPECT_THAT(AdaptedLayers(SmallGpt2(), Targeting({"c_proj"})),
              ElementsAre("transformer.h.0.attn.c_proj", "transformer.h.0.mlp.c_proj"));
}

TEST(LoraConfigTest, AllLinearHasAllLayersOfTheBlocksOnce) {
  EXPECT_EQ(AdaptedLayers(SmallDecoder(), Targeting({"all-linear"})).size(), 2u * 7);
  EXPECT_EQ(AdaptedLayers(SmallDecoder(), Targeting({"q_proj", "all-linear"})).size(), 2u * 7);
  EXPECT_THAT(AdaptedLayers(SmallGpt2(), Targeting({"all-linear"})),
              ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj",
                          "transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_proj"));
}

TEST(LoraConfigTest, TargetModulesAreThoseOfPeft) {
  EXPECT_THAT(TargetModules(SmallDecoder(), Targeting({"v_proj", "q_proj", "v_proj"})),
              ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(TargetModules(SmallGpt2(), Targeting({"all-linear"})),
              ElementsAre("c_attn", "c_fc", "c_proj"));
}

TEST(LoraConfigTest, WeightsHaveTheSizesOfTheirLayers) {
  const std::vector<WeightShape> weights =
      AdapterWeights(SmallDecoder(), Targeting({"layers.0.mlp.up_proj"}));
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0].name, "model.layers.0.mlp.up_proj.lora_A.weight");
  EXPECT_THAT(weights[0].shape, ElementsAre(4, 8));
  EXPECT_EQ(weights[1].name, "model.layers.0.mlp.up_proj.lora_B.weight");
  EXPECT_THAT(weights[1].shape, ElementsAre(12, 4));
  // Whose weight is [in_features, out_features].
  const std::vector<WeightShape> transposed = AdapterWeights(SmallGpt2(), Targeting({"c_attn"}));
  EXPECT_THAT(transposed[0].shape, ElementsAre(4, 8));
  EXPECT_THAT(transposed[1].shape, ElementsAre(24, 4));
}

TEST(LoraConfigTest, AdaptersAreKnownByTheirNames) {
  const ModelConfig model = SmallDecoder();
  for (const WeightShape& weight : AdapterWeights(model, Targeting({"all-linear"}))) {
    EXPECT_TRUE(IsAdapterWeight(weight.name)) << weight.name;
  }
  for (const WeightShape& weight : model.weights) {
    EXPECT_FALSE(IsAdapterWeight(weight.name)) << weight.name;
  }
  for (const char* name : {"", ".weight", "lora_A.bias", "a.lora_C.weight"}) {
    EXPECT_FALSE(IsAdapterWeight(name)) << name;
  }
}

TEST(LoraConfigTest, StoredSectionIsReadStrictly) {
  EXPECT_FALSE(ParseLora(Json::object(), "state").is_on());
  const LoraConfig lora =
      ParseLora({{"rank", 8}, {"alpha", 4.0}, {"targets", {"q_proj"}}}, "state");
  EXPECT_TRUE(lora.is_on());
  EXPECT_EQ(lora.scale(), 0.5);
  EXPECT_THAT(lora.targets, ElementsAre("q_proj"));
  EXPECT_THAT(ParseLora({{"targets", "all-linear"}}, "state").targets, ElementsAre(kAllLinear));
  for (const auto& [key, value] : {std::pair("rank", Json(-1)),
                                   {"rank", Json(65537)},
                                   {"rank", Json(1.5)},
                                   {"rank", Json("8")},
                                   {"alpha", Json(0)},
                                   {"alpha", Json("x")},
                                   {"targets", Json("q_proj")},
                                   {"targets", Json::array()},
                                   {"targets", Json::array({1})},
                                   {"targets", Json::array({""})}}) {
    EXPECT_THAT(RefusalOf([&, key = key, value = value] {
                  ParseLora(Json{{key, value}}, "state");
                }),
                HasSubstr("state: lora." + std::string(key) + " = "))
        << value;
  }
}

}  // namespace
}  // namespace fsdprun
