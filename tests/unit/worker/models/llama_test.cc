#include "worker/models/llama.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "worker/models/rope.h"
#include "worker/weights/load_weights.h"
#include "worker/weights/safetensors.h"

namespace fsdprun::worker {
namespace {

/// Runs the Python reference once for all cases.
class LlamaReference : public testing::Environment {
 public:
  void SetUp() override {
    at::set_num_threads(1);
    const char* python = std::getenv("FSDPRUN_PYTHON");
    if (python == nullptr) {
      return;
    }
    folder_ = std::filesystem::path(testing::TempDir()) / ("llama_" + std::to_string(getpid()));
    const char* script = std::getenv("FSDPRUN_LLAMA_SCRIPT");
    ASSERT_NE(script, nullptr) << "run through ctest";
    const std::string command = std::string(python) + " " + script + " " + folder_.string();
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  void TearDown() override {
    if (!folder_.empty()) {
      std::filesystem::remove_all(folder_);
    }
  }
  /// Where the reference lies; empty without Python.
  static std::filesystem::path folder_;
};
std::filesystem::path LlamaReference::folder_;
const auto* const kReference = testing::AddGlobalTestEnvironment(new LlamaReference);

at::Tensor ReadTensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& entry = file.header().tensors.at(name);
  at::Tensor tensor = at::empty(entry.shape, entry.dtype == "I64" ? at::kLong : at::kFloat);
  file.Read(entry.begin, entry.end - entry.begin, tensor.data_ptr());
  return tensor;
}

std::vector<fsdp::ShardedSlice> WholeSlices(const Llama& model) {
  std::vector<fsdp::ShardedSlice> slices;
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& value = parameter.value();
    slices.push_back(
        {parameter.key(), value.sizes().vec(), 0, value.numel(), value.detach().view({-1})});
  }
  return slices;
}

class LlamaParityTest : public testing::TestWithParam<std::string> {};

TEST_P(LlamaParityTest, LogitsLossAndGradientsAreBitEqualToPython) {
  if (LlamaReference::folder_.empty()) {
    GTEST_SKIP() << "needs FSDPRUN_PYTHON (ctest sets it after scripts/setup)";
  }
  const std::filesystem::path folder = LlamaReference::folder_ / GetParam();
  const LlamaConfig config = ReadLlamaConfig(folder.string());
  auto model = std::make_shared<Llama>(config, ParameterPlace{});
  LoadWeights(folder.string(), WholeSlices(*model), config.tie_word_embeddings);

  const SafetensorsFile expected(folder / "expected.safetensors");
  const at::Tensor logits = model->forward(ReadTensor(expected, "tokens"));
  const at::Tensor loss = CausalLoss(logits, ReadTensor(expected, "targets"));
  loss.backward();

  EXPECT_TRUE(logits.equal(ReadTensor(expected, "logits")));
  EXPECT_TRUE(loss.equal(ReadTensor(expected, "loss")));
  size_t compared = 0;
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor gradient = ReadTensor(expected, "grad." + parameter.key());
    EXPECT_TRUE(parameter.value().grad().equal(gradient)) << parameter.key();
    ++compared;
  }
  EXPECT_EQ(compared + 4, expected.header().tensors.size());
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaParityTest,
                         testing::Values("grouped", "tied_biased_llama3", "one_group_wide_head"));

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
  const Llama model(SmallConfig(), ParameterPlace{});
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
      const Llama model(config, ParameterPlace{});
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
  Llama first(config, ParameterPlace{}), same(config, ParameterPlace{}),
      other(config, ParameterPlace{});
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

TEST(LlamaTest, IsCausalAndStartsNearUniform) {
  Llama model(SmallConfig(), ParameterPlace{});
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
  Llama model(SmallConfig(), ParameterPlace{});
  Init(model, 1);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(30).view({1, 30});
  const at::Tensor fresh = model.forward(tokens);
  model.forward(tokens.slice(1, 0, 5));
  EXPECT_TRUE(model.forward(tokens).equal(fresh));
}

}  // namespace
}  // namespace fsdprun::worker
