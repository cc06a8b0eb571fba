// What holds for the model of every family.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "worker/models/causal_lm.h"

namespace fsdprun::worker {
namespace {

constexpr const char* kFamilies[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};

Json DocumentOf(const std::string& family) {
  if (family == "gpt2") {
    return {{"model_type", "gpt2"}, {"vocab_size", 64}, {"n_embd", 32},
            {"n_layer", 2},         {"n_head", 4},      {"n_positions", 24}};
  }
  return {{"model_type", family},
          {"vocab_size", 64},
          {"hidden_size", 32},
          {"num_hidden_layers", 2},
          {"intermediate_size", 48},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"sliding_window", 7},
          {"use_sliding_window", true},
          {"max_window_layers", 1},
          {"head_dim", 8}};
}

std::shared_ptr<CausalLm> Make(const Json& document) {
  return MakeCausalLm(ParseModelConfig(document, "config.json"), ParameterFactory{});
}

std::shared_ptr<CausalLm> MakeInitialised(const Json& document) {
  auto model = Make(document);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(3);
  for (const auto& parameter : model->named_parameters()) {
    model->InitParameter(parameter.key(), parameter.value(), generator);
  }
  return model;
}

TEST(FamiliesTest, WeightsOfTheConfigurationAreTheModules) {
  for (const char* family : kFamilies) {
    for (const bool is_tied : {false, true}) {
      for (const bool has_bias : {false, true}) {
        Json document = DocumentOf(family);
        document["tie_word_embeddings"] = is_tied;
        document["attention_bias"] = document["mlp_bias"] = has_bias;
        const auto model = Make(document);
        const std::vector<WeightShape>& weights = model->config().weights;
        const auto parameters = model->named_parameters();
        ASSERT_EQ(weights.size(), parameters.size()) << family;
        int64_t count = 0;
        for (size_t i = 0; i < weights.size(); ++i) {
          EXPECT_EQ(weights[i].name, parameters[i].key());
          EXPECT_EQ(weights[i].shape, parameters[i].value().sizes().vec()) << weights[i].name;
          count += parameters[i].value().numel();
        }
        EXPECT_EQ(ParameterCount(model->config()), count);
        EXPECT_EQ(model->config().has_tied_head(), is_tied);
      }
    }
  }
}

TEST(FamiliesTest, RecomputedBlocksGiveTheSameGradients) {
  const at::Tensor tokens = at::arange(20).view({1, 20});
  for (const char* family : kFamilies) {
    const auto kept = MakeInitialised(DocumentOf(family));
    const auto recomputed = MakeInitialised(DocumentOf(family));
    recomputed->CheckpointActivations();
    for (const auto& model : {kept, recomputed}) {
      CausalLoss(model->forward(tokens), tokens).backward();
    }
    const auto expected = kept->named_parameters();
    for (const auto& parameter : recomputed->named_parameters()) {
      EXPECT_TRUE(parameter.value().grad().equal(expected[parameter.key()].grad()))
          << family << " " << parameter.key();
    }
  }
}

TEST(FamiliesTest, NoPositionSeesALaterOne) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(20).view({1, 20});
  at::Tensor changed = tokens.clone();
  changed.select(1, 15).fill_(40);
  for (const char* family : kFamilies) {
    const auto model = MakeInitialised(DocumentOf(family));
    const at::Tensor before = model->forward(tokens);
    const at::Tensor after = model->forward(changed);
    EXPECT_TRUE(before.slice(1, 0, 15).equal(after.slice(1, 0, 15))) << family;
    EXPECT_FALSE(before.select(1, 15).equal(after.select(1, 15))) << family;
  }
}

TEST(FamiliesTest, PositionBeyondTheWindowsOfAllLayersIsNotSeen) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(20).view({1, 20});
  at::Tensor changed = tokens.clone();
  changed.select(1, 0).fill_(40);
  const auto model = MakeInitialised(DocumentOf("mistral"));
  // Two layers of 7 positions reach back 12.
  const at::Tensor before = model->forward(tokens);
  const at::Tensor after = model->forward(changed);
  EXPECT_FALSE(before.select(1, 12).equal(after.select(1, 12)));
  EXPECT_TRUE(before.slice(1, 13, 20).equal(after.slice(1, 13, 20)));
  // The mask follows the length.
  EXPECT_TRUE(model->forward(tokens.slice(1, 0, 10)).allclose(before.slice(1, 0, 10), 0, 1e-5));
}

TEST(FamiliesTest, Gpt2StartsAsTransformersDoes) {
  const auto model = MakeInitialised(DocumentOf("gpt2"));
  const auto parameters = model->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("transformer.h.0.mlp.c_fc.weight"), 0.02, 0.002);
  EXPECT_NEAR(deviation("transformer.h.1.mlp.c_proj.weight"), 0.01, 0.001);
  EXPECT_NEAR(deviation("transformer.wpe.weight"), 0.02, 0.003);
  EXPECT_TRUE(parameters["transformer.ln_f.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(parameters["transformer.h.0.ln_1.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(parameters["transformer.h.0.attn.c_attn.bias"].eq(0).all().item<bool>());
}

TEST(FamiliesTest, SequenceBeyondLearnedPositionsIsRefused) {
  const auto model = MakeInitialised(DocumentOf("gpt2"));
  try {
    model->forward(at::arange(25).view({1, 25}));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("n_positions = 24"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdprun::worker
