#include "worker/train/training_state.h"
#include "fsdp_runtime/plan/box.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "worker/train/config_schema.h"

namespace fsdprun::worker {
namespace {

std::string Refusal(const std::string& text) {
  try {
    ParseTrainingState(text);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "accepted";
}

/// A good state with one value replaced; "/data/epoch" names a nested one.
std::string With(const std::string& pointer, const nlohmann::json& value) {
  auto document = nlohmann::json::parse(FormatTrainingState({1, 2, {3, 4}, 5, "00ff"}));
  document[nlohmann::json::json_pointer(pointer)] = value;
  return document.dump();
}

TEST(TrainingStateTest, ComesBackAsItWas) {
  const int64_t large = (int64_t{1} << 53) - 8;
  const TrainingState state = ParseTrainingState(
      FormatTrainingState({large, large + 2, {large + 4, large + 6}, large + 8, "0123abcdef"}));
  EXPECT_EQ(state.step, large);
  EXPECT_EQ(state.tokens, large + 2);
  EXPECT_EQ(state.cursor, (DataCursor{large + 4, large + 6}));
  EXPECT_EQ(state.windows, large + 8);
  EXPECT_EQ(state.rng, "0123abcdef");
}

TEST(TrainingStateTest, WhatIsImpossibleIsNamed) {
  EXPECT_EQ(Refusal(With("/step", 1)), "accepted");
  EXPECT_EQ(Refusal(With("/step", -1)),
            "training state: step is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/tokens", 1.5)),
            "training state: tokens is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/data/epoch", nullptr)),
            "training state: epoch is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/data", 7)),
            "training state: epoch is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/format", 2)), "training state: format 2: expected 1");
  EXPECT_EQ(Refusal(With("/rng", 7)), "training state: data or rng is missing");
  EXPECT_EQ(Refusal("[]"), "training state: format is missing or not a count from 0 to 2^53");
  EXPECT_NE(Refusal("{").find("not valid JSON"), std::string::npos);
}

// A step adds to the tokens, a round to the offset, and the end of an epoch to its number.
TEST(TrainingStateTest, CountsThatWouldOverflowAreRefused) {
  const int64_t most = int64_t{1} << 53;
  for (const char* name : {"/step", "/tokens", "/data/epoch", "/data/offset", "/data/windows"}) {
    EXPECT_EQ(Refusal(With(name, most)), "accepted") << name;
    const std::string key = std::string(name).substr(std::string(name).rfind('/') + 1);
    const std::string refusal =
        "training state: " + key + " is missing or not a count from 0 to 2^53";
    EXPECT_EQ(Refusal(With(name, most + 1)), refusal);
    EXPECT_EQ(Refusal(With(name, std::numeric_limits<int64_t>::max())), refusal);
    EXPECT_EQ(Refusal(With(name, std::numeric_limits<uint64_t>::max())), refusal);
  }
}

TEST(TrainingStateTest, RandomNumbersGoOnWhereTheyWere) {
  at::manual_seed(5);
  at::rand({3});
  const std::string rng = CaptureRng();
  const at::Tensor next = at::randn({100});
  at::manual_seed(6);
  RestoreRng(rng);
  EXPECT_TRUE(at::randn({100}).equal(next));
  EXPECT_THROW(RestoreRng("0g"), std::runtime_error);
  EXPECT_THROW(RestoreRng("abc"), std::runtime_error);
  EXPECT_THROW(RestoreRng("00"), ConfigError);  // a restart would fail again
  EXPECT_THROW(RestoreRng(rng + "00"), ConfigError);
}

class JobStateTest : public testing::Test {
 protected:
  JobStateTest() {
    Json resolved = DefaultConfig();
    resolved["model"]["config"] = "unused";
    resolved["data"]["train"] = {"unused"};
    resolved["optimizer"]["no_decay"] = {"*norm.weight"};
    config_ = ParseConfig(resolved);
    LlamaConfig llama;
    llama.vocab_size = 16;
    llama.hidden_size = 8;
    llama.intermediate_size = 12;
    llama.num_hidden_layers = 1;
    llama.num_attention_heads = llama.num_key_value_heads = 2;
    llama.head_dim = 4;
    job_ = MakeJob(config_, llama);
    FillWeights(config_, job_);
    optimizer_ = std::make_unique<fsdp::AdamW>(job_.root, fsdp::AdamWOptions{});
  }
  TrainConfig config_;
  Job job_;
  std::unique_ptr<fsdp::AdamW> optimizer_;
};

TEST_F(JobStateTest, CheckpointHasWeightsMomentsAndStepsOfEveryParameter) {
  const checkpoint::State state = CheckpointTensors(job_, *optimizer_, CaptureSteps(*optimizer_));
  const auto parameters = job_.root.sharded_parameters();
  EXPECT_EQ(state.tensors.size(), 4 * parameters.size());
  std::set<std::string> keys;
  for (const fsdp::LocalShard& slice : state.tensors) {
    keys.insert(slice.fqn);
    EXPECT_EQ(slice.local.numel(), fsdp::plan::total_numel(slice.boxes)) << slice.fqn;
  }
  EXPECT_EQ(keys.size(), state.tensors.size());
  for (const fsdp::LocalShard& parameter : parameters) {
    EXPECT_TRUE(keys.contains("model." + parameter.fqn));
    for (const char* suffix : {".exp_avg", ".exp_avg_sq", ".step"}) {
      EXPECT_TRUE(keys.contains("optim.state." + parameter.fqn + suffix)) << suffix;
    }
  }
  EXPECT_EQ(WeightTensors(job_).tensors.size(), parameters.size());
}

TEST_F(JobStateTest, CheckpointTensorsAreTheTrainingsOwn) {
  ASSERT_FALSE(job_.root.sharded_parameters().empty());
  // A load fills them in place, so they must be views of what is trained.
  for (const fsdp::LocalShard& slice : WeightTensors(job_).tensors) {
    slice.local.fill_(0.25);
  }
  for (const fsdp::LocalShard& slice : job_.root.sharded_parameters()) {
    EXPECT_TRUE((slice.local == 0.25).all().item<bool>()) << slice.fqn;
  }
}

TEST_F(JobStateTest, EveryParameterHasAStepCountOfItsOwn) {
  const auto parameters = job_.root.sharded_parameters();
  const at::Tensor steps = CaptureSteps(*optimizer_);
  ASSERT_EQ(steps.numel(), static_cast<int64_t>(parameters.size()));
  // As a load fills them: one parameter of the block has done 7 steps, the rest 9.
  for (const fsdp::LocalShard& slice : CheckpointTensors(job_, *optimizer_, steps).tensors) {
    if (slice.fqn.ends_with(".step")) {
      slice.local.fill_(slice.fqn.find(".layers.0.mlp.up_proj.") != std::string::npos ? 7 : 9);
    }
  }
  RestoreSteps(steps, *optimizer_);
  EXPECT_TRUE(CaptureSteps(*optimizer_).equal(steps));
  EXPECT_EQ(steps.eq(7).sum().item<int64_t>(), 1);
  EXPECT_EQ(optimizer_->step_count(), 9);
}

TEST_F(JobStateTest, StepCountsThatCannotBeGoneOnWithAreRefused) {
  const auto parameters = job_.root.sharded_parameters();
  const auto error_with = [&](int64_t index, double count) -> std::string {
    const at::Tensor steps = at::full({static_cast<int64_t>(parameters.size())}, 9.0F);
    steps[index].fill_(count);
    try {
      RestoreSteps(steps, *optimizer_);
    } catch (const checkpoint::MismatchError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error_with(0, -1), "its optimizer has done -1 steps");
  EXPECT_EQ(error_with(0, 2.5), "its optimizer has done 2.5 steps");
  EXPECT_EQ(error_with(0, std::nan("")), "its optimizer has done nan steps");
  EXPECT_EQ(optimizer_->step_count(), 0);  // nothing of what was refused is kept
}

TEST_F(JobStateTest, ParameterGroupsSplitByDecay) {
  const auto groups = nlohmann::json::parse(FormatParamGroups(job_, config_.optimizer, 0.5));
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0]["weight_decay"], 0.01);
  EXPECT_EQ(groups[1]["weight_decay"], 0.0);
  EXPECT_EQ(groups[1]["lr"], 0.5);
  EXPECT_EQ(groups[0]["betas"], nlohmann::json({0.9, 0.999}));
  EXPECT_EQ(groups[1]["params"].size(), 3u);  // two in the block and the final one
  EXPECT_EQ(groups[0]["params"].size() + groups[1]["params"].size(),
            job_.root.sharded_parameters().size());
}

TEST_F(JobStateTest, OptimizerHasTheGroupsThatCheckpointsName) {
  const auto weight_decays = [this](const std::vector<std::string>& no_decay) {
    TrainConfig::Optimizer options = config_.optimizer;
    options.no_decay = no_decay;
    const auto groups = MakeParamGroups(job_, options);
    const fsdp::AdamW optimizer(job_.root, groups, {.weight_decay = options.weight_decay});
    const auto named = nlohmann::json::parse(FormatParamGroups(job_, options, 0.5));
    EXPECT_EQ(named.size(), optimizer.group_count());
    std::vector<double> decays;
    for (size_t g = 0; g < optimizer.group_count(); ++g) {
      EXPECT_EQ(named[g]["params"], nlohmann::json(optimizer.params(g)));
      EXPECT_EQ(named[g]["weight_decay"], optimizer.options(g).weight_decay);
      decays.push_back(optimizer.options(g).weight_decay);
    }
    return decays;
  };
  EXPECT_EQ(weight_decays({}), std::vector<double>{0.01});
  EXPECT_EQ(weight_decays({"*norm.weight"}), (std::vector<double>{0.01, 0}));
  EXPECT_EQ(weight_decays({"*"}), std::vector<double>{0});
}

TEST_F(JobStateTest, OneInfiniteWeightIsSeen) {
  EXPECT_TRUE(HasFiniteWeights(job_));
  for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    const at::Tensor last = job_.root.sharded_parameters().back().local;
    const at::Tensor before = last.clone();
    last[last.numel() - 1].fill_(bad);
    EXPECT_FALSE(HasFiniteWeights(job_)) << bad;
    last.copy_(before);
  }
  EXPECT_TRUE(HasFiniteWeights(job_));
}

TEST(TrainingStateTest, ChangedOptionsOfTheOptimizerAreNamed) {
  const std::string stored =
      R"([{"betas":[0.9,0.95],"eps":1e-8,"weight_decay":0.1,"params":["a","b"]}])";
  EXPECT_TRUE(DescribeChangedGroups(stored, stored).empty());
  const std::string now =
      R"([{"betas":[0.9,0.99],"eps":1e-8,"weight_decay":0.1,"params":["a"]},
          {"betas":[0.9,0.99],"eps":1e-8,"weight_decay":0.0,"params":["b","c"]}])";
  EXPECT_EQ(DescribeChangedGroups(stored, now),
            (std::vector<std::string>{
                "optimizer.betas of a was [0.9,0.95] at the checkpoint and is [0.9,0.99] now",
                "optimizer.weight_decay of b was 0.1 at the checkpoint and is 0.0 now"}));
  EXPECT_TRUE(DescribeChangedGroups("null", now).empty());
}

}  // namespace
}  // namespace fsdprun::worker
