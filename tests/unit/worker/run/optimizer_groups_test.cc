#include "worker/run/optimizer_groups.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/run/small_run.h"

namespace fsdprun::worker {
namespace {

class OptimizerGroupsOfModelTest : public testing::Test {
 protected:
  nlohmann::json Formatted(const TrainConfig::Optimizer& options, double factor) const {
    return nlohmann::json::parse(FormatParamGroups(run_.state.model, options, factor));
  }
  std::vector<fsdp::LocalShard> parameters() const {
    return run_.state.model.root.sharded_parameters();
  }

  SmallRun run_;
};

TEST_F(OptimizerGroupsOfModelTest, ParameterGroupsSplitByDecay) {
  const auto groups = Formatted(run_.config.optimizer, 0.5);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0]["weight_decay"], 0.01);
  EXPECT_EQ(groups[1]["weight_decay"], 0.0);
  EXPECT_EQ(groups[1]["lr"], 0.0005);
  EXPECT_EQ(groups[0]["betas"], nlohmann::json({0.9, 0.999}));
  EXPECT_EQ(groups[1]["params"].size(), 3u);  // two in the block and the final one
  EXPECT_EQ(groups[0]["params"].size() + groups[1]["params"].size(), parameters().size());
}

TEST_F(OptimizerGroupsOfModelTest, PatternsThatMatchNothingAreRefused) {
  TrainConfig::Optimizer options = run_.config.optimizer;
  options.no_decay = {"*norm.weight", "*nrom*"};
  EXPECT_THROW(GroupParameters(parameters(), options), ConfigError);
}

TEST_F(OptimizerGroupsOfModelTest, WhatAPatternMatchesIsNotDecayed) {
  const auto weight_decays = [this](const std::vector<std::string>& no_decay) {
    TrainConfig::Optimizer options = run_.config.optimizer;
    options.no_decay = no_decay;
    std::vector<double> decays;
    for (const OptimizerGroup& group : GroupParameters(parameters(), options)) {
      EXPECT_EQ(group.kind, OptimizerKind::kAdamW);
      decays.push_back(group.weight_decay);
    }
    return decays;
  };
  EXPECT_EQ(weight_decays({}), std::vector<double>{0.01});
  EXPECT_EQ(weight_decays({"*norm.weight"}), (std::vector<double>{0.01, 0}));
  EXPECT_EQ(weight_decays({"*"}), std::vector<double>{0});
}

TEST_F(OptimizerGroupsOfModelTest, MuonHasTheMatricesOfBlocks) {
  TrainConfig::Optimizer options = run_.config.optimizer;
  options.name = "muon";
  options.adamw_lr = 0.25;
  const std::vector<OptimizerGroup> groups = GroupParameters(parameters(), options);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].kind, OptimizerKind::kMuon);
  EXPECT_EQ(groups[0].params.size(), 7u);
  EXPECT_EQ(groups[0].rate, options.lr);
  EXPECT_EQ(groups[1].params,
            (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
  EXPECT_EQ(groups[1].rate, 0.25);
  EXPECT_EQ(groups[2].params.size(), 3u);
  EXPECT_EQ(groups[2].weight_decay, 0);
  const auto formatted = Formatted(options, 2);
  EXPECT_EQ(formatted[0]["adjust_lr_fn"], options.adjust_lr_fn);
  EXPECT_EQ(formatted[0]["lr"], 2 * options.lr);
  EXPECT_EQ(formatted[1]["lr"], 0.5);
  EXPECT_TRUE(formatted[1].contains("betas"));
}

TEST_F(OptimizerGroupsOfModelTest, EveryOptimizerKeepsWhatPyTorchNames) {
  const auto names_of = [this](const std::string& name, double momentum) {
    TrainConfig::Optimizer options = run_.config.optimizer;
    options.name = name;
    options.momentum = momentum;
    options.ns_steps = 5;
    options.adjust_lr_fn = "original";
    std::set<std::string> names;
    size_t parts = 0;
    for (const OptimizerTensors& tensors : MakeOptimizer(run_.state.model, options)->Tensors()) {
      names.insert(tensors.name);
      parts += tensors.parts.size();
    }
    return std::pair(names, parts);
  };
  const size_t all = parameters().size();
  using Names = std::set<std::string>;
  EXPECT_EQ(names_of("adamw", 0), std::pair(Names({"exp_avg", "exp_avg_sq"}), 2 * all));
  EXPECT_EQ(names_of("sgd", 0.9), std::pair(Names({"momentum_buffer"}), all));
  EXPECT_EQ(names_of("sgd", 0), std::pair(Names({"momentum_buffer"}), size_t{0}));
  EXPECT_EQ(names_of("muon", 0.95),
            std::pair(Names({"momentum_buffer", "exp_avg", "exp_avg_sq"}), 7 + 2 * (all - 7)));
}

TEST(OptimizerGroupsTest, BlocksAreNumbered) {
  const auto is_matrix = [](const std::string& fqn, const std::vector<int64_t>& shape) {
    return IsMatrixOfBlock({.fqn = fqn, .global_shape = shape, .boxes = {}, .mesh_axes = {}});
  };
  EXPECT_TRUE(is_matrix("model.layers.0.mlp.up_proj.weight", {4, 2}));
  EXPECT_TRUE(is_matrix("transformer.h.12.attn.c_attn.weight", {4, 2}));
  EXPECT_FALSE(is_matrix("model.layers.0.input_layernorm.weight", {4}));
  EXPECT_FALSE(is_matrix("model.embed_tokens.weight", {4, 2}));
  EXPECT_FALSE(is_matrix("lm_head2.weight", {4, 2}));
}

TEST(OptimizerGroupsTest, ChangedOptionsOfTheOptimizerAreNamed) {
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

TEST(OptimizerGroupsTest, OptionsThatOnlyPythonHasAreNamedIfTheyComputeSomethingElse) {
  const std::string now = R"([{"betas":[0.9,0.99],"params":["a","b"]}])";
  EXPECT_TRUE(
      DescribeChangedGroups(
          R"([{"amsgrad":false,"maximize":false,"decoupled_weight_decay":true,"foreach":null,
                       "params":["a","b"]}])",
          now)
          .empty());
  EXPECT_EQ(DescribeChangedGroups(
                R"([{"amsgrad":false,"params":["a"]},{"amsgrad":true,"params":["b"]},
                    {"maximize":true,"decoupled_weight_decay":false,"params":["c"]}])",
                now),
            std::vector<std::string>{
                "the optimizer of b had amsgrad = true at the checkpoint; fsdp-train's has false"});
}

}  // namespace
}  // namespace fsdprun::worker
