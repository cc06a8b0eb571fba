#include "fsdpctl/ckpt/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fsdp_runtime/archive/error.h"

namespace fsdprun::ckpt {
namespace {

using fsdp::archive::Error;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

/// Tensors full of zeros, but for `other`.
class ZeroTensors : public TensorSource {
 public:
  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    tensors_[name] = {"float32", shape, 1, {}};
  }
  void Remove(const std::string& name) { tensors_.erase(name); }
  void Read(const std::string& name, int64_t /*begin*/, int64_t count, void* out) override {
    std::memset(out, name == other ? 1 : 0, static_cast<size_t>(count) * sizeof(float));
  }
  std::string other;
};

/// A GPT-2 of one block; its head is tied by default.
Json Config() {
  return {{"model_type", "gpt2"}, {"vocab_size", 5}, {"n_positions", 3},
          {"n_embd", 2},          {"n_layer", 1},    {"n_head", 1}};
}

ZeroTensors Source(const std::string& prefix) {
  ZeroTensors source;
  source.Add(prefix + "wte.weight", {5, 2});
  source.Add(prefix + "wpe.weight", {3, 2});
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    source.Add(prefix + name + ".weight", shape);
    source.Add(prefix + name + ".bias", {shape.back()});
  };
  add("h.0.ln_1", {2});
  add("h.0.attn.c_attn", {2, 6});
  add("h.0.attn.c_proj", {2, 2});
  add("h.0.ln_2", {2});
  add("h.0.mlp.c_fc", {2, 8});
  add("h.0.mlp.c_proj", {8, 2});
  add("ln_f", {2});
  return source;
}

std::string Refusal(ZeroTensors& source) {
  try {
    WeightsOfModel(source, "the source", Config(), "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(ModelWeightsTest, OfAnotherModelAreRefused) {
  ZeroTensors source = Source("transformer.");
  source.Remove("transformer.ln_f.bias");
  EXPECT_THAT(Refusal(source), HasSubstr("the source is not of the model that config.json "
                                         "describes: it has no transformer.ln_f.bias;"));
  source = Source("transformer.");
  source.Add("transformer.wpe.weight", {2, 2});
  EXPECT_THAT(Refusal(source), HasSubstr("transformer.wpe.weight has the shape [2, 2]"));
  source = Source("transformer.");
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    source.Add(name, {1});
  }
  EXPECT_THAT(Refusal(source), HasSubstr("the model has no a, b, c and 2 more;"));
  source = Source("transformer.");
  source.Add("lm_head.weight", {5, 2});
  source.other = "lm_head.weight";
  EXPECT_THAT(Refusal(source), HasSubstr("lm_head.weight differs from transformer.wte.weight"));
}

TEST(ModelWeightsTest, HaveTheModelsNames) {
  ZeroTensors source = Source("");
  source.Add("lm_head.weight", {5, 2});
  source.Add("h.0.attn.bias", {1, 1, 3, 3});
  const ModelWeights found = WeightsOfModel(source, "the source", Config(), "config.json");
  EXPECT_THAT(found.unchecked, IsEmpty());
  EXPECT_EQ(found.weights.size(), 16U);
  for (const auto& [name, key] : found.weights) {
    EXPECT_EQ(name, "transformer." + key);
  }
}

TEST(ModelWeightsTest, OfAnUnknownModelAreTheSources) {
  ZeroTensors source;
  source.Add("a", {1});
  Json config = Config();
  config["architectures"] = {"GPT2ForSequenceClassification"};
  ModelWeights found = WeightsOfModel(source, "the source", config, "config.json");
  EXPECT_THAT(found.unchecked, HasSubstr("GPT2ForSequenceClassification"));
  EXPECT_THAT(found.weights, UnorderedElementsAre(Pair("a", "a")));
  found = WeightsOfModel(source, "the source", {{"model_type", "other"}}, "config.json");
  EXPECT_THAT(found.unchecked, HasSubstr("model_type"));
}

}  // namespace
}  // namespace fsdprun::ckpt
