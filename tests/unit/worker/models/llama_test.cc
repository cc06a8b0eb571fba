#include "worker/models/llama.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace fsdprun::worker {
namespace {

LlamaConfig SmallConfig() {
  LlamaConfig config;
  config.vocab_size = 256;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  return config;
}

void Init(Llama& model, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& parameter : model.named_parameters()) {
    InitLlamaParameter(model.config(), parameter.key(), parameter.value(), generator);
  }
}

TEST(LlamaTest, ParametersAreNamedAndOrderedAsInHuggingFace) {
  const Llama model(SmallConfig(), ParameterFactory{});
  const std::vector<std::string> names = model.named_parameters().keys();
  ASSERT_EQ(names.size(), 2u * 9 + 3);
  EXPECT_EQ(names[0], "model.embed_tokens.weight");
  EXPECT_EQ(names[1], "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(names[4], "model.layers.0.self_attn.o_proj.weight");
  EXPECT_EQ(names[5], "model.layers.0.mlp.gate_proj.weight");
  EXPECT_EQ(names[7], "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(names[8], "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(names[9], "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(names[19], "model.norm.weight");
  EXPECT_EQ(names[20], "lm_head.weight");
}

TEST(LlamaTest, CountsItsParameters) {
  for (const bool is_tied : {false, true}) {
    for (const bool has_bias : {false, true}) {
      LlamaConfig config = SmallConfig();
      config.tie_word_embeddings = is_tied;
      config.attention_bias = config.mlp_bias = has_bias;
      const Llama model(config, ParameterFactory{});
      int64_t count = 0;
      for (const at::Tensor& parameter : model.parameters()) {
        count += parameter.numel();
      }
      EXPECT_EQ(ParameterCount(config), count);
    }
  }
}

TEST(LlamaTest, InitFollowsSeedAndKind) {
  LlamaConfig config = SmallConfig();
  config.attention_bias = true;
  Llama first(config, ParameterFactory{}), same(config, ParameterFactory{}),
      other(config, ParameterFactory{});
  Init(first, 3);
  Init(same, 3);
  Init(other, 4);
  const auto of = [](const Llama& model, const char* name) {
    return model.named_parameters()[name];
  };
  const char* kWeight = "model.layers.1.mlp.up_proj.weight";
  EXPECT_TRUE(of(first, kWeight).equal(of(same, kWeight)));
  EXPECT_FALSE(of(first, kWeight).equal(of(other, kWeight)));
  EXPECT_NEAR(of(first, kWeight).std().item<double>(), 0.02, 0.002);
  EXPECT_TRUE(of(first, "model.norm.weight").eq(1).all().item<bool>());
  EXPECT_TRUE(of(first, "model.layers.0.self_attn.q_proj.bias").eq(0).all().item<bool>());
}

TEST(LlamaTest, PaddingTokenStartsAtZeroAndStays) {
  LlamaConfig config = SmallConfig();
  config.padding_token = 3;
  Llama model(config, ParameterFactory{});
  Init(model, 1);
  const at::Tensor weight = model.named_parameters()["model.embed_tokens.weight"];
  EXPECT_TRUE(weight[3].eq(0).all().item<bool>());
  EXPECT_FALSE(weight[4].eq(0).any().item<bool>());
  const at::Tensor tokens = at::arange(20).view({1, 20});
  CausalLoss(model.forward(tokens), tokens).backward();
  EXPECT_TRUE(weight.grad()[3].eq(0).all().item<bool>());
  EXPECT_FALSE(weight.grad()[4].eq(0).all().item<bool>());
}

TEST(LlamaTest, IsCausalAndStartsNearUniform) {
  Llama model(SmallConfig(), ParameterFactory{});
  Init(model, 1);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(20).view({1, 20});
  at::Tensor changed = tokens.clone();
  changed.select(1, 15).fill_(99);
  const at::Tensor logits = model.forward(tokens);
  const at::Tensor logits_changed = model.forward(changed);
  EXPECT_TRUE(logits.slice(1, 0, 15).equal(logits_changed.slice(1, 0, 15)));
  EXPECT_FALSE(logits.select(1, 15).equal(logits_changed.select(1, 15)));
  EXPECT_NEAR(CausalLoss(logits, tokens).item<double>(), std::log(256.0), 0.1);
}

TEST(LlamaTest, LongerInputAfterShorterGetsLongerTables) {
  Llama model(SmallConfig(), ParameterFactory{});
  Init(model, 1);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(30).view({1, 30});
  const at::Tensor fresh = model.forward(tokens);
  model.forward(tokens.slice(1, 0, 5));
  EXPECT_TRUE(model.forward(tokens).equal(fresh));
}

}  // namespace
}  // namespace fsdprun::worker
