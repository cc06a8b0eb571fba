#include "worker/batch/micro_batch_limit.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "worker/batch/step_plan.h"
#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

ModelConfig Model(int64_t width = 8) {
  ModelConfig model;
  model.description = {{"hidden_size", width}, {"rope_theta", 10000.0}};
  return model;
}

MicroBatchLimit Limit() {
  return {4, 12, "run", "launch", MicroBatchSettings(DefaultConfig(), Model(), 8)};
}

/// Of a start that the limit is for, but for what `resolved` and `ranks` say.
LimitedStart Start(const Json& resolved, int64_t ranks = 8) {
  return {"run", "another", MicroBatchSettings(resolved, Model(), ranks), /*has_saved=*/true};
}

std::string ReadLimitFile(const std::string& dir) {
  return checkpoint::ReadWholeFile(MicroBatchLimitPath(dir), kMicroBatchLimitBytesMax);
}

/// Fails the effect of this name.
class FailingFileSystem : public checkpoint::FileSystem {
 public:
  explicit FailingFileSystem(std::string effect) : effect_(std::move(effect)) {}

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    return effect.name == effect_ ? ENOSPC : 0;
  }

 private:
  const std::string effect_;
};

TEST(MicroBatchLimitTest, WhatIsWrittenIsRead) {
  const checkpoint::TemporaryDirectory dir;
  checkpoint::FileSystem file_system;
  WriteMicroBatchLimit(file_system, dir.path(), "a/launch-3", Limit());
  const auto limit = DecodeMicroBatchLimit(ReadLimitFile(dir.path()));
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->windows, 4);
  EXPECT_EQ(limit->step, 12);
  EXPECT_EQ(limit->run, "run");
  EXPECT_EQ(limit->launch, "launch");
  EXPECT_EQ(limit->settings, Limit().settings);
  EXPECT_EQ(checkpoint::ListDirectory(dir.path()), std::vector<std::string>{"micro-batch.json"});
}

TEST(MicroBatchLimitTest, AWriteThatFailsLeavesTheOldOne) {
  const checkpoint::TemporaryDirectory dir;
  checkpoint::FileSystem file_system;
  WriteMicroBatchLimit(file_system, dir.path(), "launch-0", Limit());
  const std::string before = ReadLimitFile(dir.path());
  for (const char* effect : {"create", "write", "sync", "rename"}) {
    FailingFileSystem failing(effect);
    MicroBatchLimit other = Limit();
    other.windows = 2;
    EXPECT_THROW(WriteMicroBatchLimit(failing, dir.path(), "launch-0", other),
                 checkpoint::CheckpointError)
        << effect;
    EXPECT_EQ(ReadLimitFile(dir.path()), before) << effect;
  }
}

// Two launches may write at the same time.
TEST(MicroBatchLimitTest, WritersHaveTheirOwnFiles) {
  class Names : public checkpoint::FileSystem {
   public:
    std::set<std::string> created;

   protected:
    int Intercept(const checkpoint::Effect& effect) override {
      if (effect.name == "create") {
        created.insert(effect.path);
      }
      return 0;
    }
  };
  const checkpoint::TemporaryDirectory dir;
  Names file_system;
  for (const char* writer : {"first-0", "second-0"}) {
    WriteMicroBatchLimit(file_system, dir.path(), writer, Limit());
  }
  EXPECT_EQ(file_system.created.size(), 2u);
}

TEST(MicroBatchLimitTest, OtherTextsAreNone) {
  for (const char* text :
       {"", "{", "[]", "1", "{}", R"({"version": 2, "windows": 4, "settings": {}})",
        R"({"version": 1, "windows": 0, "settings": {}})", R"({"version": 1, "windows": 4})",
        R"({"version": 1, "windows": 1.5, "settings": {}})",
        R"({"version": 1, "windows": "4", "settings": {}})"}) {
    EXPECT_FALSE(DecodeMicroBatchLimit(text)) << text;
  }
  EXPECT_TRUE(DecodeMicroBatchLimit(R"({"version": 1, "windows": 4, "settings": {}})"));
}

TEST(MicroBatchLimitTest, ItIsForItsRunAndItsLaunch) {
  const Json settings = Limit().settings;
  EXPECT_EQ(WhyNotFor(Limit(), {"run", "another", settings, true}), "");
  EXPECT_EQ(WhyNotFor(Limit(), {"another", "launch", settings, true}), "");
  const std::string others = "another run has found it, whose checkpoints are there";
  EXPECT_EQ(WhyNotFor(Limit(), {"another", "another", settings, true}), others);
  MicroBatchLimit nobodys = Limit();
  nobodys.run = nobodys.launch = "";
  EXPECT_EQ(WhyNotFor(nobodys, {"", "", settings, true}), others);
}

// A start that finds no checkpoint draws a new name for its run, and has another launch.
TEST(MicroBatchLimitTest, WithoutACheckpointOfItsRunItIsForEachStart) {
  LimitedStart start{"another", "", Limit().settings, /*has_saved=*/false};
  EXPECT_EQ(WhyNotFor(Limit(), start), "");
  start.settings = MicroBatchSettings(DefaultConfig(), Model(16), 8);
  EXPECT_EQ(WhyNotFor(Limit(), start), "it was found with another model");
}

TEST(MicroBatchLimitTest, WhatChangesMemoryEndsIt) {
  const Json values = {{"train.micro_batch_size", 6}, {"train.activation_checkpointing", true},
                       {"train.freeze", {"*norm*"}},  {"lora.rank", 4},
                       {"lora.targets", {"q_proj"}},  {"optimizer.momentum", 0.5},
                       {"model.kernels", "fused"},    {"train.step_graph", true}};
  for (const auto& [key, value] : values.items()) {
    Json resolved = DefaultConfig();
    const size_t dot = key.find('.');
    resolved[key.substr(0, dot)][key.substr(dot + 1)] = value;
    EXPECT_EQ(WhyNotFor(Limit(), Start(resolved)).find(key + " was "), 0u) << key;
  }
  Json resolved = DefaultConfig();
  resolved["optimizer"]["lr"] = 7.0;  // changes no memory
  EXPECT_EQ(WhyNotFor(Limit(), Start(resolved)), "");
  MicroBatchLimit older = Limit();
  older.settings.erase("lora.rank");
  EXPECT_EQ(WhyNotFor(older, Start(DefaultConfig())), "lora.rank was null then and is 0 now");
  older = Limit();
  older.settings.erase("train.step_graph");
  EXPECT_EQ(WhyNotFor(older, Start(DefaultConfig())), "");
}

TEST(MicroBatchLimitTest, FewerRanksHaveNoMoreMemoryEach) {
  EXPECT_EQ(WhyNotFor(Limit(), Start(DefaultConfig(), 4)), "");
  EXPECT_EQ(WhyNotFor(Limit(), Start(DefaultConfig(), 16)), "ranks was 8 then and is 16 now");
}

TEST(MicroBatchLimitTest, ForwardsAreHalvedUntilThereIsOneWindow) {
  EXPECT_EQ(SmallerMicroBatch(8), 4);
  EXPECT_EQ(SmallerMicroBatch(3), 1);
  EXPECT_EQ(SmallerMicroBatch(1), std::nullopt);
}

TEST(MicroBatchLimitTest, TheBatchOfAStepStaysWhatItIs) {
  TrainConfig config;
  config.train.micro_batch_size = 6;
  config.train.grad_accumulation = 2;
  config.data.sampler = "torch";
  const StepPlan before = PlanStep(config, 1, 4);
  LimitMicroBatch(config.train, 4, 4);
  const StepPlan after = PlanStep(config, 1, 4);
  EXPECT_EQ(after.samples, before.samples);
  EXPECT_EQ(after.own_samples, before.own_samples);
  EXPECT_EQ(after.micro_batch_size, 4);
  EXPECT_EQ(after.forwards, 3);
  // Of one forward a rank keeps no whole gradients, of several it would.
  EXPECT_TRUE(config.train.sync_each_micro_batch);

  TrainConfig::Train train = config.train;
  train.sync_each_micro_batch = false;
  LimitMicroBatch(train, 8, 4);  // what is above what was asked for is no limit
  EXPECT_EQ(train.micro_batch_size, 4);
  EXPECT_FALSE(train.sync_each_micro_batch);
}

}  // namespace
}  // namespace fsdprun::worker
