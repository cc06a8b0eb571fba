#include "fsdpctl/ckpt/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "formats/checkpoint/torch_blob.h"
#include "formats/tensors/open_tensors.h"
#include "formats/tensors/weights_digest.h"
#include "formats/tensors/write_checkpoint.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/export.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/tensors/memory_tensors.h"

namespace fsdprun::ckpt {
namespace {

using checkpoint::MessageOf;
using fsdp::archive::Error;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kAdapted[] = "model.layers.0.self_attn.v_proj";

int64_t CountOf(const WeightShape& weight) {
  int64_t count = 1;
  for (const int64_t size : weight.shape) {
    count *= size;
  }
  return count;
}

/// A base in a folder, and a checkpoint with adapters of it.
class AdaptersTest : public testing::Test {
 protected:
  AdaptersTest() {
    std::filesystem::create_directory(base_);
    std::ofstream(base_ + "/config.json") << config_.dump();
    WriteBase();
    for (const WeightShape& weight : AdapterWeights(model_, lora_)) {
      Add(weight, 3, adapters_);
    }
    state_["config"] = {{"lora", {{"rank", 2}, {"alpha", 4.0}, {"targets", {"v_proj"}}}},
                        {"model", {{"config", base_}, {"weights", base_}}}};
    state_["model_config"] = config_;
    state_["model_folder"] = base_;
    state_["adapters"] = {{"the digest of the base", DigestOfBaseFile()}};
  }

  /// Small whole numbers, exact in float32 in every sum.
  static void Add(const WeightShape& weight, int64_t step, MemoryTensors& source) {
    std::vector<float> values;
    for (int64_t i = 0; i < CountOf(weight); ++i) {
      values.push_back(static_cast<float>(i * step % 11 - 5));
    }
    source.Add(weight.name, weight.shape, values);
  }
  void WriteBase(int64_t step = 7) {
    MemoryTensors source;
    std::vector<ExportedTensor> tensors;
    for (const WeightShape& weight : model_.weights) {
      Add(weight, step, source);
      tensors.push_back({weight.name, weight.name, "float32"});
    }
    std::filesystem::remove(base_ + "/model.safetensors");
    WriteSafetensors(source, tensors, base_ + "/model.safetensors");
  }
  std::string DigestOfBaseFile() const {
    const auto source = OpenTensors(base_);
    return DigestOfWeights(*source, source->Weights());
  }
  void WriteAdapters() {
    CheckpointToWrite output;
    for (const auto& [name, facts] : adapters_.tensors()) {
      output.tensors.push_back({"model." + name, name, {"model", name}});
    }
    output.objects = {{"train.state", checkpoint::PackObject(nlohmann::json(state_)), {}}};
    WriteCheckpoint(adapters_, output, checkpoint_, Existing::kReplace);
  }
  CkptOptions Options(ExportFormat format) const {
    CkptOptions options;
    options.operands = {checkpoint_, out_};
    options.format = format;
    return options;
  }
  std::string Refusal(const CkptOptions& options) const {
    const std::string message = MessageOf<Error>([&] { ExportCheckpoint(options); });
    EXPECT_FALSE(std::filesystem::exists(out_));
    return message;
  }
  static std::vector<float> Values(TensorSource& source, const WeightShape& weight) {
    return ReadFloats(source, weight.name, CountOf(weight), CountOf(weight));
  }

  const checkpoint::TemporaryDirectory folder_;
  const std::string base_ = folder_ / "base", checkpoint_ = folder_ / "step-3",
                    out_ = folder_ / "out";
  const Json config_ = {{"model_type", "llama"},    {"vocab_size", 6},
                        {"hidden_size", 8},         {"intermediate_size", 4},
                        {"num_hidden_layers", 1},   {"num_attention_heads", 2},
                        {"num_key_value_heads", 1}, {"tie_word_embeddings", true}};
  const ModelConfig model_ = ParseModelConfig(config_, "config.json");
  const LoraConfig lora_ = {2, 4.0, {"v_proj"}};
  MemoryTensors adapters_;
  Json state_ = Json::object();
};

TEST_F(AdaptersTest, AnotherBaseIsRefused) {
  WriteAdapters();
  WriteBase(/*step=*/5);
  EXPECT_THAT(Refusal(Options(ExportFormat::kHuggingFace)),
              AllOf(HasSubstr(base_ + " are not those that its adapters were trained on"),
                    HasSubstr("--base")));
}

TEST_F(AdaptersTest, ABaseThatIsNotKnownMustBeNamed) {
  for (const char* named : {"none", "models/llama", ""}) {
    state_["config"]["model"]["weights"] = named;
    std::filesystem::remove_all(checkpoint_);
    WriteAdapters();
    EXPECT_THAT(Refusal(Options(ExportFormat::kTorchFile)), HasSubstr("--base PATH")) << named;
  }
  CkptOptions options = Options(ExportFormat::kHuggingFace);
  options.base = base_;
  EXPECT_TRUE(ExportCheckpoint(options).is_good);
  EXPECT_TRUE(std::filesystem::exists(out_ + "/model.safetensors"));
}

TEST_F(AdaptersTest, WhatHasNoneIsRefused) {
  CkptOptions options = Options(ExportFormat::kAdapter);
  options.operands[0] = base_;
  EXPECT_THAT(Refusal(options), HasSubstr("with --format adapter: it has no adapters"));
  options = Options(ExportFormat::kHuggingFace);
  options.operands[0] = options.base = base_;
  EXPECT_THAT(Refusal(options), HasSubstr("with --base: it has no adapters"));
}

TEST_F(AdaptersTest, AdaptersThatAreNotThoseThatItSaysAreRefused) {
  state_["config"]["lora"]["targets"] = {"v_proj", "q_proj"};
  WriteAdapters();
  for (const ExportFormat format : {ExportFormat::kAdapter, ExportFormat::kHuggingFace}) {
    EXPECT_THAT(Refusal(Options(format)),
                HasSubstr("has no model.layers.0.self_attn.q_proj.lora_A.weight"));
  }
  state_["config"]["lora"] = {{"rank", 3}, {"alpha", 4.0}, {"targets", {"v_proj"}}};
  std::filesystem::remove_all(checkpoint_);
  WriteAdapters();
  EXPECT_THAT(Refusal(Options(ExportFormat::kAdapter)), HasSubstr("with the shape"));
}

TEST_F(AdaptersTest, MergedWeightsAreTheBaseAndTheProduct) {
  WriteAdapters();
  for (const ExportFormat format : {ExportFormat::kHuggingFace, ExportFormat::kTorchFile}) {
    std::filesystem::remove_all(out_);
    EXPECT_TRUE(ExportCheckpoint(Options(format)).is_good);
  }
  std::filesystem::remove_all(out_);
  ExportCheckpoint(Options(ExportFormat::kHuggingFace));
  const auto merged = OpenTensors(out_), base = OpenTensors(base_);
  EXPECT_EQ(merged->tensors().size(), model_.weights.size());
  const std::vector<WeightShape> matrices = AdapterWeights(model_, lora_);
  const std::vector<float> a = Values(adapters_, matrices[0]), b = Values(adapters_, matrices[1]);
  for (const WeightShape& weight : model_.weights) {
    std::vector<float> expected = Values(*base, weight);
    if (weight.name == std::string(kAdapted) + ".weight") {
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t out = i / 8, in = i % 8;
        expected[i] += 2 * (b[out * 2] * a[in] + b[out * 2 + 1] * a[8 + in]);
      }
      EXPECT_NE(expected, Values(*base, weight));
    }
    EXPECT_EQ(Values(*merged, weight), expected) << weight.name;
  }
}

TEST_F(AdaptersTest, AdapterIsAsPeftWritesIt) {
  WriteAdapters();
  EXPECT_TRUE(ExportCheckpoint(Options(ExportFormat::kAdapter)).is_good);
  const auto written = OpenTensors(out_ + "/adapter_model.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, facts] : written->tensors()) {
    names.push_back(name);
  }
  const std::string prefix = "base_model.model." + std::string(kAdapted);
  EXPECT_THAT(names, ElementsAre(prefix + ".lora_A.weight", prefix + ".lora_B.weight"));
  EXPECT_THAT(written->tensors().at(names[0]).shape, ElementsAre(2, 8));
  EXPECT_THAT(written->tensors().at(names[1]).shape, ElementsAre(4, 2));
  const std::vector<WeightShape> matrices = AdapterWeights(model_, lora_);
  EXPECT_EQ(ReadFloats(*written, names[1], 8, 3), Values(adapters_, matrices[1]));
  const Json config = ReadStrictJsonFile(out_ + "/adapter_config.json");
  const Json expected = {{"peft_type", "LORA"},
                         {"task_type", "CAUSAL_LM"},
                         {"r", 2},
                         {"lora_alpha", 4},
                         {"target_modules", Json::array({"v_proj"})},
                         {"base_model_name_or_path", base_},
                         {"fan_in_fan_out", false}};
  for (const auto& [key, value] : expected.items()) {
    EXPECT_EQ(config.at(key), value) << key;
  }
}

TEST(AdapterConfigTest, SaysWhatIsNotSetAsPeftDoes) {
  const ModelConfig gpt2 = ParseModelConfig(
      {{"model_type", "gpt2"}, {"vocab_size", 8}, {"n_embd", 4}, {"n_layer", 1}, {"n_head", 1}},
      "config.json");
  const Json config = Json::parse(AdapterConfig({4, 0.5, {kAllLinear}}, gpt2, "none"));
  EXPECT_TRUE(config.at("base_model_name_or_path").is_null());
  EXPECT_EQ(config.at("fan_in_fan_out"), true);
  EXPECT_EQ(config.at("lora_alpha"), 0.5);
  EXPECT_EQ(config.at("target_modules"), Json::array({"c_attn", "c_fc", "c_proj"}));
}

}  // namespace
}  // namespace fsdprun::ckpt
