// What holds for the model of every family.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/worker/models/family_documents.h"
#include "worker/models/causal_lm.h"

namespace fsdprun::worker {
namespace {

TEST(FamiliesTest, WeightsOfTheConfigurationAreTheModules) {
  for (const char* family : kFamilies) {
    for (const bool is_tied : {false, true}) {
      for (const bool has_bias : {false, true}) {
        Json document = DocumentOf(family);
        document["tie_word_embeddings"] = is_tied;
        document["attention_bias"] = document["mlp_bias"] = has_bias;
        const auto model = MakeModel(document);
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
    const auto kept = MakeInitialisedModel(DocumentOf(family));
    const auto recomputed = MakeInitialisedModel(DocumentOf(family));
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
    const auto model = MakeInitialisedModel(DocumentOf(family));
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
  const auto model = MakeInitialisedModel(DocumentOf("mistral"));
  // Two layers of 7 positions reach back 12.
  const at::Tensor before = model->forward(tokens);
  const at::Tensor after = model->forward(changed);
  EXPECT_FALSE(before.select(1, 12).equal(after.select(1, 12)));
  EXPECT_TRUE(before.slice(1, 13, 20).equal(after.slice(1, 13, 20)));
  // The mask follows the length.
  EXPECT_TRUE(model->forward(tokens.slice(1, 0, 10)).allclose(before.slice(1, 0, 10), 0, 1e-5));
}

TEST(FamiliesTest, TokensThatFollowACacheGiveTheLogitsOfTheWhole) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(20).view({1, 20});
  for (const char* family : kFamilies) {
    for (const Kernels kernels : {Kernels::kReference, Kernels::kFused}) {
      const auto model = MakeInitialisedModel(DocumentOf(family), kernels);
      const at::Tensor whole = model->forward(tokens);
      KeyValueCache cache = model->MakeCache(20);
      // The first ones together, then several and single ones, past the window's end.
      int64_t done = 0;
      for (const int64_t count : {5, 1, 4, 1, 1, 8}) {
        const at::Tensor last = model->Continue(tokens.narrow(1, done, count), cache);
        done += count;
        EXPECT_EQ(cache.length(), done);
        EXPECT_TRUE(last.allclose(whole.select(1, done - 1), 0, 1e-5)) << family << " " << done;
      }
      EXPECT_THROW(model->Continue(tokens.narrow(1, 0, 1), cache), c10::Error) << family;
    }
  }
}

TEST(FamiliesTest, Gpt2StartsAsTransformersDoes) {
  const auto model = MakeInitialisedModel(DocumentOf("gpt2"));
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
  const auto model = MakeInitialisedModel(DocumentOf("gpt2"));
  try {
    model->forward(at::arange(25).view({1, 25}));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("n_positions = 24"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdprun::worker
