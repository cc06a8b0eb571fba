#include "worker/models/causal_lm.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "formats/models/decoder/parse_decoder.h"
#include "tests/unit/fsdp_runtime/engine/counted_memory.h"

namespace fsdprun::worker {
namespace {

DecoderConfig SmallConfig() {
  DecoderConfig config;
  config.vocab_size = 256;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  return config;
}

std::shared_ptr<CausalLm> Make(const DecoderConfig& config) {
  return MakeCausalLm(DescribeDecoder("llama", config), LayerFactory{});
}

std::shared_ptr<CausalLm> Init(const DecoderConfig& config, uint64_t seed) {
  auto model = Make(config);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& parameter : model->named_parameters()) {
    model->InitParameter(parameter.key(), parameter.value(), generator);
  }
  return model;
}

TEST(DecoderTest, ParametersAreNamedAndOrderedAsInHuggingFace) {
  const auto model = Make(SmallConfig());
  const std::vector<std::string> names = model->named_parameters().keys();
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

TEST(DecoderTest, CountsItsParameters) {
  for (const bool is_tied : {false, true}) {
    for (const bool has_bias : {false, true}) {
      DecoderConfig config = SmallConfig();
      config.tie_word_embeddings = is_tied;
      config.has_qkv_bias = config.has_output_bias = config.mlp_bias = has_bias;
      const auto model = Make(config);
      int64_t count = 0;
      for (const at::Tensor& parameter : model->parameters()) {
        count += parameter.numel();
      }
      EXPECT_EQ(ParameterCount(model->config()), count);
    }
  }
}

TEST(DecoderTest, InitFollowsSeedAndKind) {
  DecoderConfig config = SmallConfig();
  config.has_qkv_bias = true;
  const auto first = Init(config, 3);
  const auto same = Init(config, 3);
  const auto other = Init(config, 4);
  const auto of = [](const std::shared_ptr<CausalLm>& model, const char* name) {
    return model->named_parameters()[name];
  };
  const char* kWeight = "model.layers.1.mlp.up_proj.weight";
  EXPECT_TRUE(of(first, kWeight).equal(of(same, kWeight)));
  EXPECT_FALSE(of(first, kWeight).equal(of(other, kWeight)));
  EXPECT_NEAR(of(first, kWeight).std().item<double>(), 0.02, 0.002);
  EXPECT_TRUE(of(first, "model.norm.weight").eq(1).all().item<bool>());
  EXPECT_TRUE(of(first, "model.layers.0.self_attn.q_proj.bias").eq(0).all().item<bool>());
}

TEST(DecoderTest, PaddingTokenStartsAtZeroAndStays) {
  DecoderConfig config = SmallConfig();
  config.padding_token = 3;
  const auto model = Init(config, 1);
  const at::Tensor weight = model->named_parameters()["model.embed_tokens.weight"];
  EXPECT_TRUE(weight[3].eq(0).all().item<bool>());
  EXPECT_FALSE(weight[4].eq(0).any().item<bool>());
  const at::Tensor tokens = at::arange(20).view({1, 20});
  CausalLoss(model->forward(tokens), tokens).backward();
  EXPECT_TRUE(weight.grad()[3].eq(0).all().item<bool>());
  EXPECT_FALSE(weight.grad()[4].eq(0).all().item<bool>());
}

TEST(DecoderTest, IsCausalAndStartsNearUniform) {
  const auto model = Init(SmallConfig(), 1);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(20).view({1, 20});
  at::Tensor changed = tokens.clone();
  changed.select(1, 15).fill_(99);
  const at::Tensor logits = model->forward(tokens);
  const at::Tensor logits_changed = model->forward(changed);
  EXPECT_TRUE(logits.slice(1, 0, 15).equal(logits_changed.slice(1, 0, 15)));
  EXPECT_FALSE(logits.select(1, 15).equal(logits_changed.select(1, 15)));
  EXPECT_NEAR(CausalLoss(logits, tokens).item<double>(), std::log(256.0), 0.1);
}

TEST(DecoderTest, LongerInputAfterShorterGetsLongerTables) {
  const auto model = Init(SmallConfig(), 1);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(30).view({1, 30});
  const at::Tensor fresh = model->forward(tokens);
  model->forward(tokens.slice(1, 0, 5));
  EXPECT_TRUE(model->forward(tokens).equal(fresh));
}

// Which have a row for each token that the cache has room for.
TEST(DecoderTest, TokensOfACacheShareTables) {
  constexpr int64_t kCapacity = 2048;
  const auto model = Init(SmallConfig(), 1);
  KeyValueCache cache = model->MakeCache(kCapacity);
  const auto count = std::make_shared<fsdp::testing::MemoryCount>();
  const fsdp::testing::CountingAllocator allocator(count);
  const int64_t table_bytes = kCapacity * SmallConfig().head_dim * 4;
  const auto tables_of = [&](const at::Tensor& tokens) {
    count->begin_noting();
    model->Continue(tokens, cache);
    // Keys and values of all tokens have another size.
    const std::vector<int64_t> large = count->end_noting(table_bytes);
    return std::count(large.begin(), large.end(), table_bytes);
  };
  EXPECT_GT(tables_of(at::arange(8).view({1, 8})), 0);
  EXPECT_EQ(tables_of(at::full({1, 1}, 8)), 0);
  count->begin_noting();
  model->Continue(at::full({1, 1}, 9), cache);
  EXPECT_TRUE(count->end_noting(table_bytes / 2).empty());
}

}  // namespace
}  // namespace fsdprun::worker
