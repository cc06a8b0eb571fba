#include "worker/estimate/advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/worker/estimate/small_estimate.h"
#include "worker/estimate/format_estimate.h"

namespace fsdprun::worker {
namespace {

const EstimateOptions kFourRanks{.ranks = 4, .speed = {}};

std::vector<Remedy> RemediesOf(const std::vector<std::string>& settings) {
  return RemediesFor(EstimatedConfig(settings), EstimatedModel(), kFourRanks);
}

bool HasRemedy(const std::vector<Remedy>& remedies, const std::string& settings) {
  return std::any_of(remedies.begin(), remedies.end(),
                     [&](const Remedy& remedy) { return remedy.settings == settings; });
}

TEST(AdviceTest, OnlyWhatHelpsIsAdvised) {
  const std::vector<Remedy> remedies =
      RemediesOf({"train.micro_batch_size=8", "parallel.strategy=shard_grad_op"});
  EXPECT_TRUE(HasRemedy(remedies, "train.activation_checkpointing=true"));
  EXPECT_TRUE(HasRemedy(remedies, "parallel.strategy=full_shard"));
  EXPECT_TRUE(HasRemedy(remedies, "train.micro_batch_size=4 with train.global_batch_size=32"));
  EXPECT_TRUE(HasRemedy(remedies, "train.micro_batch_size=1 with train.global_batch_size=32"));
  EXPECT_FALSE(HasRemedy(remedies, "parallel.dp_replicate=1"));
  const int64_t peak =
      EstimateRun(EstimatedConfig({"train.micro_batch_size=8", "parallel.strategy=shard_grad_op"}),
                  EstimatedModel(), kFourRanks)
          .peak();
  for (const Remedy& remedy : remedies) {
    EXPECT_LT(remedy.peak, peak) << remedy.settings;
  }
}

TEST(AdviceTest, AllTogetherComesLastIfItIsBetter) {
  const std::vector<Remedy> remedies = RemediesOf({"train.micro_batch_size=8"});
  ASSERT_GT(remedies.size(), 2u);
  EXPECT_TRUE(std::is_sorted(remedies.begin(), remedies.end() - 1,
                             [](const Remedy& a, const Remedy& b) { return a.peak < b.peak; }));
  const Remedy& all = remedies.back();
  EXPECT_LT(all.peak, remedies.front().peak);
  EXPECT_NE(all.settings.find("train.activation_checkpointing=true"), std::string::npos);
  EXPECT_NE(all.settings.find("train.micro_batch_size=1 "), std::string::npos);
  EXPECT_EQ(all.settings.find("train.micro_batch_size=4"), std::string::npos);
}

TEST(AdviceTest, WhatIsSetAlreadyIsNotAdvised) {
  const std::vector<Remedy> remedies =
      RemediesOf({"train.micro_batch_size=1", "train.activation_checkpointing=true",
                  "model.kernels=fused", "precision.param=bfloat16"});
  for (const char* setting : {"train.micro_batch_size", "train.activation_checkpointing",
                              "model.kernels", "precision.param"}) {
    for (const Remedy& remedy : remedies) {
      EXPECT_EQ(remedy.settings.find(setting), std::string::npos) << remedy.settings;
    }
  }
}

/// "a=1 with b=2, c=3": what a user sets.
std::vector<std::string> SettingsIn(std::string text) {
  for (const std::string separator : {" with ", " and ", ", "}) {
    for (size_t at = text.find(separator); at != std::string::npos; at = text.find(separator, at)) {
      text.replace(at, separator.size(), "\n");
    }
  }
  std::vector<std::string> settings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    settings.push_back(line);
  }
  return settings;
}

TEST(AdviceTest, WhoFollowsItHasThePeakThatItNames) {
  const std::vector<std::vector<std::string>> cases = {
      {"train.micro_batch_size=8", "train.grad_accumulation=4"},
      {"train.micro_batch_size=8", "train.grad_accumulation=2", "parallel.dp_replicate=2",
       "parallel.strategy=shard_grad_op", "train.sync_each_micro_batch=false"},
      {"train.micro_batch_size=8", "train.global_batch_size=32"},
      {"train.micro_batch_size=8", "lora.rank=2"}};
  for (const std::vector<std::string>& given : cases) {
    const std::vector<Remedy> remedies = RemediesOf(given);
    EXPECT_FALSE(remedies.empty());
    for (const Remedy& remedy : remedies) {
      std::vector<std::string> settings = given;
      for (const std::string& setting : SettingsIn(remedy.settings)) {
        settings.push_back(setting);
      }
      // Throws for settings that do not go together.
      EXPECT_EQ(EstimateRun(EstimatedConfig(settings), EstimatedModel(), kFourRanks).peak(),
                remedy.peak)
          << remedy.settings;
    }
  }
}

TEST(AdviceTest, TheTextNamesTheBestFirst) {
  const TrainConfig config = EstimatedConfig({"train.micro_batch_size=8"});
  const std::string text = AdviceText(config, EstimatedModel(), kFourRanks);
  EXPECT_EQ(text.find("set " + RemediesOf({"train.micro_batch_size=8"}).front().settings +
                      " (an estimated "),
            0u)
      << text;
  EXPECT_NE(text.find(" a rank instead of "), std::string::npos) << text;
}

TEST(AdviceTest, AVerdictKnowsWhatFits) {
  const TrainConfig config = EstimatedConfig({"train.micro_batch_size=8"});
  const ModelConfig model = EstimatedModel();
  const Estimate estimate = EstimateRun(config, model, kFourRanks);
  EXPECT_TRUE(JudgeMemory(config, model, kFourRanks, estimate, 2 * estimate.peak()).fits);
  // A tenth is not for it.
  const MemoryVerdict tight = JudgeMemory(config, model, kFourRanks, estimate, estimate.peak());
  EXPECT_FALSE(tight.fits);
  EXPECT_FALSE(tight.remedies.empty());
  for (const Remedy& remedy : tight.remedies) {
    EXPECT_LE(remedy.peak, UsableBytes(estimate.peak())) << remedy.settings;
  }
  // What helps, though it is not enough.
  EXPECT_FALSE(JudgeMemory(config, model, kFourRanks, estimate, 1000).remedies.empty());
}

}  // namespace
}  // namespace fsdprun::worker
