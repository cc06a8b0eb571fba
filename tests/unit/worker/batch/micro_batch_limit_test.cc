#include "worker/batch/micro_batch_limit.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "worker/batch/step_plan.h"
#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

MicroBatchLimit Limit() { return {4, 12, "run", "launch", MicroBatchSettings(DefaultConfig(), 8)}; }

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
  WriteMicroBatchLimit(file_system, dir.path(), /*rank=*/3, Limit());
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
  WriteMicroBatchLimit(file_system, dir.path(), 0, Limit());
  const std::string before = ReadLimitFile(dir.path());
  for (const char* effect : {"create", "write", "sync", "rename"}) {
    FailingFileSystem failing(effect);
    MicroBatchLimit other = Limit();
    other.windows = 2;
    EXPECT_THROW(WriteMicroBatchLimit(failing, dir.path(), 0, other), checkpoint::CheckpointError)
        << effect;
    EXPECT_EQ(ReadLimitFile(dir.path()), before) << effect;
  }
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

TEST(MicroBatchLimitTest, ItIsForItsRunOrLaunchAndTheSameSettings) {
  const Json settings = Limit().settings;
  EXPECT_TRUE(IsFor(Limit(), "run", "another", settings));
  EXPECT_TRUE(IsFor(Limit(), "another", "launch", settings));
  EXPECT_FALSE(IsFor(Limit(), "another", "another", settings));
  MicroBatchLimit nobodys = Limit();
  nobodys.run = nobodys.launch = "";
  EXPECT_FALSE(IsFor(nobodys, "", "", settings));

  Json resolved = DefaultConfig();
  resolved["train"]["micro_batch_size"] = 6;
  EXPECT_FALSE(IsFor(Limit(), "run", "launch", MicroBatchSettings(resolved, 8)));
  EXPECT_FALSE(IsFor(Limit(), "run", "launch", MicroBatchSettings(DefaultConfig(), 4)));
  resolved = DefaultConfig();
  resolved["optimizer"]["lr"] = 7.0;  // changes no memory
  EXPECT_TRUE(IsFor(Limit(), "run", "launch", MicroBatchSettings(resolved, 8)));
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

  TrainConfig::Train train = config.train;
  LimitMicroBatch(train, 8, 4);  // what is above what was asked for is no limit
  EXPECT_EQ(train.micro_batch_size, 4);
}

}  // namespace
}  // namespace fsdprun::worker
