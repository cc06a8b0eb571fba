#include "worker/run/sampling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/training_state.h"

namespace fsdprun::worker {
namespace {

const Json kModel = {{"model_type", "llama"},      {"vocab_size", 256},
                     {"hidden_size", 8},           {"intermediate_size", 16},
                     {"num_hidden_layers", 1},     {"num_attention_heads", 2},
                     {"rope_scaling", nullptr},    {"rope_theta", 5000.5},
                     {"architectures", {"Llama"}}, {"max_position_embeddings", 64}};

class SamplingTest : public testing::Test {
 protected:
  SamplingTest() {
    resolved_["model"]["config"] = directory_ / "config.json";
    resolved_["data"]["train"] = {directory_ / "text"};
    resolved_["data"]["seq_len"] = 5;
    resolved_["precision"]["param"] = "bfloat16";
    line_.sample = {.checkpoint = directory_ / "checkpoints", .prompt = "hello", .tokens = 20};
  }

  /// Saves a model whose checkpoint has this description.
  void Save(const std::optional<RunDescription>& description,
            const Json& changes = Json::object()) const {
    SmallRun run(ParseModelConfig(kModel, "test"), changes);
    // New weights are so small that the context hardly matters.
    for (const fsdp::LocalShard& slice : run.state.model.root.sharded_parameters()) {
      slice.local.mul_(20);
    }
    checkpoint::State state = Capture(run.state, run.config);
    TrainingState training = ParseTrainingState(state.training_state_json);
    training.description = description;
    state.training_state_json = FormatTrainingState(training);
    checkpoint::SaverOptions options;
    options.dir = directory_ / "checkpoints";
    options.group = run.group();
    checkpoint::Saver saver(options);
    saver.Save(1, state);
    saver.Release();
  }
  std::string Sampled() const {
    std::string bytes;
    Sample(line_, [&](std::string_view piece) { bytes += piece; });
    return bytes;
  }
  std::string Refusal() const {
    return checkpoint::MessageOf<ConfigError>([&] { Sampled(); });
  }
  std::string Write(const std::string& name, const Json& document) const {
    std::ofstream(directory_ / name) << document.dump();
    return directory_ / name;
  }

  const checkpoint::TemporaryDirectory directory_;
  Json resolved_ = DefaultConfig();
  CommandLine line_;
};

TEST_F(SamplingTest, CheckpointThatSaysNothingNeedsAModel) {
  Save(std::nullopt);
  const std::string refusal = Refusal();
  for (const char* words :
       {"step-1 does not say which model it is of", "--config FILE", "--set model.config=PATH"}) {
    EXPECT_NE(refusal.find(words), std::string::npos) << refusal;
  }
  line_.overrides = {"model.config=" + Write("config.json", kModel)};
  EXPECT_EQ(Sampled().size(), 25u);
}

TEST_F(SamplingTest, WhatACheckpointSaysWronglyIsNamed) {
  Json bad = kModel;
  bad["hidden_size"] = "wide";
  Save(RunDescription{resolved_, bad});
  EXPECT_NE(Refusal().find("step-1: model_config: hidden_size"), std::string::npos) << Refusal();
  Json few = kModel;
  few["max_position_embeddings"] = 4;
  Save(RunDescription{resolved_, few});
  EXPECT_NE(Refusal().find("expected at most the model's max_position_embeddings = 4"),
            std::string::npos)
      << Refusal();
  resolved_["data"]["seq_len"] = -1;
  Save(RunDescription{resolved_, kModel});
  EXPECT_NE(Refusal().find("data.seq_len = -1"), std::string::npos) << Refusal();
}

TEST_F(SamplingTest, CheckpointAloneGivesTheBytesThatItsConfigurationGives) {
  Save(RunDescription{resolved_, kModel});
  const std::string alone = Sampled();
  EXPECT_EQ(alone.substr(0, 5), "hello");
  EXPECT_EQ(alone.size(), 25u);
  Write("config.json", kModel);
  line_.config = Write("train.json", resolved_);
  EXPECT_EQ(Sampled(), alone);
  // Other windows give other bytes, so the length of the checkpoint's was used.
  line_.overrides = {"data.seq_len=20"};
  const std::string longer = Sampled();
  EXPECT_NE(longer, alone);
  line_.config.clear();
  EXPECT_EQ(Sampled(), longer);
}

TEST_F(SamplingTest, ModelAloneIsEnoughAndItsPositionsAreKept) {
  Save(RunDescription{Json::object(), kModel});
  line_.sample.tokens = kModel.at("max_position_embeddings").get<int64_t>();
  EXPECT_EQ(Sampled().size(), 5 + static_cast<size_t>(line_.sample.tokens));
}

TEST_F(SamplingTest, HowTheModelWasShardedIsNotTakenOver) {
  resolved_["parallel"]["dp_replicate"] = 2;  // and one rank samples
  resolved_["parallel"]["backend"] = "nccl";
  Save(RunDescription{resolved_, kModel});
  EXPECT_EQ(Sampled().size(), 25u);
}

TEST_F(SamplingTest, OtherAdaptersThanTheCheckpointsAreRefused) {
  Write("config.json", kModel);
  Json lora = resolved_;
  lora["lora"]["rank"] = 2;
  Save(RunDescription{lora, kModel}, {{"lora", {{"rank", 2}}}});
  EXPECT_EQ(Sampled().size(), 25u);
  line_.config = Write("train.json", resolved_);
  EXPECT_NE(Refusal().find("the checkpoint has adapters alone, and lora.rank is 0 now"),
            std::string::npos)
      << Refusal();
  lora["lora"]["alpha"] = 1.0;
  line_.config = Write("train.json", lora);
  EXPECT_NE(Refusal().find("lora.alpha was 16.0 at the checkpoint and is 1.0 now"),
            std::string::npos)
      << Refusal();
  line_.overrides = {"model.on_change=warn"};
  testing::internal::CaptureStderr();
  EXPECT_EQ(Sampled().size(), 25u);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("warning: lora.alpha was 16.0"),
            std::string::npos);
}

TEST_F(SamplingTest, GivenConfigurationWinsAndTheContradictionIsTold) {
  Save(RunDescription{resolved_, kModel});
  Json other = kModel;
  other["rope_theta"] = 10000.0;
  Write("config.json", other);
  line_.config = Write("train.json", resolved_);
  testing::internal::CaptureStderr();
  Sampled();
  // SmallRun's record is of the model that was saved.
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: the model's rope_theta was 5000.5 at the checkpoint and is 10000.0 now\n");
}

}  // namespace
}  // namespace fsdprun::worker
