#include "worker/config/resolve.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "worker/config/config_schema.h"
#include "worker/config/presets.h"

namespace fsdprun::worker {
namespace {

const std::vector<std::string> kNecessary = {"model.config=m", "data.train=[\"t\"]"};

class ResolveTest : public testing::Test {
 protected:
  ~ResolveTest() override { std::remove(path_.c_str()); }

  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  Json FromFile(const std::string& preset = "") const {
    return ResolveConfig({.preset = preset, .file = path_, .overrides = kNecessary});
  }
  std::string Refusal(const std::string& preset = "") const {
    try {
      FromFile(preset);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }

  const std::string path_ = testing::TempDir() + "resolve_" + std::to_string(getpid()) + ".json";
};

TEST_F(ResolveTest, AnUnknownPresetIsRefusedWithThoseThatThereAre) {
  Write(R"({"preset": "huge"})");
  EXPECT_EQ(Refusal(), path_ +
                           ": preset: \"huge\": expected the name of a preset: tiny-cpu, pretrain, "
                           "finetune (see fsdp-train config --list-presets)");
  EXPECT_EQ(Refusal("tiny").substr(0, 18), "--preset: \"tiny\": ");
  Write(R"({"preset": ["tiny-cpu"]})");
  EXPECT_EQ(Refusal(), path_ + ": preset = [\"tiny-cpu\"]: expected a name in quotes");
}

TEST_F(ResolveTest, CommentsMayStandInAConfigurationAndRepeatedKeysMayNot) {
  Write("{\n  // how long\n  \"train\": {\"steps\": 7 /* short */}\n}\n");
  EXPECT_EQ(FromFile().at("train").at("steps"), 7);
  Write("{\"train\": {\"steps\": 7, // once\n \"steps\": 8}}");
  EXPECT_EQ(Refusal(), path_ + ": key \"steps\" occurs twice in one object");
}

TEST_F(ResolveTest, WhatIsSaidCountsBeforeThePreset) {
  Write(R"({"preset": "tiny-cpu", "schedule": {"kind": "linear"}})");
  const Json config = FromFile();
  EXPECT_EQ(config.at("schedule").at("kind"), "linear");
  EXPECT_EQ(config.at("schedule").at("warmup_steps"), 20);
  EXPECT_FALSE(config.contains("preset"));
}

TEST_F(ResolveTest, ThePresetOfTheCommandLineReplacesTheFiles) {
  Write(R"({"preset": "tiny-cpu"})");
  const Json config = FromFile("finetune");
  EXPECT_EQ(config.at("data").at("seq_len"), 1024);
  EXPECT_EQ(config.at("schedule").at("warmup_steps"), 30);
}

TEST_F(ResolveTest, WhatAPresetSaysOfAnotherOptimizerOrScheduleDoesNotCount) {
  Write(R"({"preset": "tiny-cpu", "optimizer": {"name": "sgd", "lr": 0.5}})");
  const Json optimizer = FromFile().at("optimizer");
  EXPECT_EQ(optimizer.at("betas"), DefaultConfig().at("optimizer").at("betas"));
  EXPECT_EQ(optimizer.at("lr"), 0.5);
  EXPECT_EQ(optimizer.at("weight_decay"), 0.1);
  Write(R"({"preset": "tiny-cpu", "optimizer": {"name": "muon"}})");
  EXPECT_EQ(FromFile().at("optimizer").at("betas"), Json({0.9, 0.95}));
}

TEST_F(ResolveTest, WhatIsSaidOfAnotherOptimizerThanTheChosenIsRefusedWithAPresetToo) {
  Write(R"({"preset": "tiny-cpu", "optimizer": {"name": "sgd", "betas": [0.9, 0.95]}})");
  EXPECT_EQ(Refusal().substr(0, 46), "configuration: optimizer.betas = [0.9,0.95]: e");
  Write(R"({"preset": "tiny-cpu", "optimizer": {"name": 7, "betas": [0.9, 0.95]}})");
  EXPECT_EQ(Refusal().substr(0, 35), "configuration: optimizer.name = 7: ");
}

TEST(PresetsTest, EachIsAValidConfigurationButForTheModelAndTheData) {
  for (const Preset& preset : Presets()) {
    EXPECT_NO_THROW(ResolveConfig({.preset = std::string(preset.name), .overrides = kNecessary}))
        << preset.name;
    EXPECT_NE(DescribePresets().find(std::string(preset.name) + ": "), std::string::npos);
  }
  EXPECT_NE(DescribePresets().find("  optimizer.lr = 2e-05\n"), std::string::npos)
      << DescribePresets();
}

TEST(CommentedConfigTest, ReadsBackAsTheSameValues) {
  for (const char* preset : {"", "pretrain"}) {
    const Json values = MergeSources({.preset = preset, .overrides = kNecessary});
    EXPECT_EQ(ParseStrictJson(CommentedConfig(values), "f", JsonComments::kIgnored), values);
  }
}

TEST(CommentedConfigTest, DescribesEveryKeyInLinesOfATerminal) {
  const std::string text = CommentedConfig(DefaultConfig());
  for (const ConfigKey& key : ConfigSchema()) {
    const std::string name(key.path.substr(key.path.find('.') + 1));
    EXPECT_NE(text.find("\n    \"" + name + "\": "), std::string::npos) << key.path;
  }
  EXPECT_NE(text.find("// optimizer steps of the whole run (an integer >= 0; default 1000)\n"),
            std::string::npos);
  size_t longest = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  EXPECT_LE(longest, 100u);
}

}  // namespace
}  // namespace fsdprun::worker
