#include "worker/run/frozen_base.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "formats/models/lora.h"
#include "formats/models/model_flops.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/optimizer_groups.h"

namespace fsdprun::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kFrozenNorm[] = "model.norm.weight";

Json WithLora(const Json& lora) { return {{"lora", lora}}; }
Json WithFrozen(const std::vector<std::string>& patterns) {
  return {{"train", {{"freeze", patterns}}}};
}

std::set<std::string> KeysOf(const checkpoint::State& state) {
  std::set<std::string> keys;
  for (const fsdp::LocalShard& slice : state.tensors) {
    keys.insert(slice.fqn);
  }
  return keys;
}

at::Tensor Whole(const ShardedModel& model, const std::string& fqn) {
  return model.root.full_parameter(fqn);
}

void TrainOneStep(SmallRun& run) {
  const at::Tensor tokens = at::arange(12, at::kLong).view({2, 6});
  LossOf(run.state.model.module, tokens, tokens).backward();
  fsdp::clip_grad_norm_(run.state.model.root, 1.0);
  run.state.optimizer->Step({});
  run.state.optimizer->ZeroGrad();
}

std::string RefusalOf(const Json& changes) {
  Json resolved = DefaultConfig();
  resolved["model"]["config"] = "unused";
  resolved["data"]["train"] = {"unused"};
  MergeConfig(resolved, changes, "changes");
  return checkpoint::MessageOf<ConfigError>(
      [&] { FrozenWeights(ParseConfig(resolved), SmallLlama()); });
}

TEST(FrozenBaseTest, NamesThatAreNoneAreRefused) {
  EXPECT_EQ(RefusalOf(WithFrozen({"*norm*", "*head*.bias"})),
            "configuration: train.freeze has \"*head*.bias\": expected a pattern that matches a "
            "parameter, e.g. \"model.embed_tokens.weight\"");
  EXPECT_THAT(RefusalOf(WithFrozen({"model.layers*", "*"})),
              HasSubstr("train.freeze has \"*\": expected patterns that leave a parameter"));
  EXPECT_THAT(RefusalOf(WithLora({{"rank", 2}, {"targets", {"c_attn"}}})),
              HasSubstr("lora.targets has \"c_attn\""));
}

TEST(FrozenBaseTest, WhatIsFrozenStaysAndHasNoState) {
  SmallRun run(SmallLlama(), WithFrozen({"*norm*", "model.embed_tokens.weight"}));
  const ShardedModel& model = run.state.model;
  EXPECT_THAT(model.frozen, SizeIs(4));
  const at::Tensor frozen = Whole(model, kFrozenNorm);
  const at::Tensor trained = Whole(model, "lm_head.weight");
  TrainOneStep(run);
  EXPECT_TRUE(Whole(model, kFrozenNorm).equal(frozen));
  EXPECT_FALSE(Whole(model, "lm_head.weight").equal(trained));

  const std::set<std::string> keys =
      KeysOf(CheckpointTensors(model, *run.state.optimizer, CaptureSteps(*run.state.optimizer)));
  for (const fsdp::LocalShard& parameter : model.root.sharded_parameters()) {
    const bool is_trained = !model.frozen.contains(parameter.fqn);
    EXPECT_TRUE(keys.contains("model." + parameter.fqn)) << parameter.fqn;
    for (const char* end : {".exp_avg", ".exp_avg_sq", ".step"}) {
      EXPECT_EQ(keys.contains("optim.state." + parameter.fqn + end), is_trained) << parameter.fqn;
    }
  }
  for (const Json& group : Json::parse(FormatParamGroups(model, run.config.optimizer, 1))) {
    for (const Json& name : group.at("params")) {
      EXPECT_FALSE(model.frozen.contains(name.get<std::string>())) << name;
    }
  }
}

TEST(FrozenBaseTest, OnlyAdaptersAreTrainedAndSaved) {
  for (const char* optimizer : {"adamw", "sgd", "muon"}) {
    Json changes = WithLora({{"rank", 2}, {"targets", {"q_proj", "down_proj"}}});
    changes["optimizer"] = {{"name", optimizer}, {"lr", 0.1}};
    SmallRun run(SmallLlama(), changes);
    const ShardedModel& model = run.state.model;
    std::map<std::string, at::Tensor> before;
    for (const fsdp::LocalShard& parameter : model.root.sharded_parameters()) {
      before[parameter.fqn] = Whole(model, parameter.fqn);
    }
    TrainOneStep(run);
    TrainOneStep(run);  // A has a gradient once B is not zero
    std::set<std::string> trained;
    for (const auto& [name, values] : before) {
      if (IsAdapterWeight(name)) {
        trained.insert(name);
      }
      EXPECT_EQ(Whole(model, name).equal(values), !IsAdapterWeight(name)) << optimizer << name;
    }
    EXPECT_EQ(trained.size(), 4u);
    for (const std::string& key : KeysOf(
             CheckpointTensors(model, *run.state.optimizer, CaptureSteps(*run.state.optimizer)))) {
      EXPECT_THAT(key, HasSubstr(".lora_")) << optimizer;
    }
    EXPECT_EQ(KeysOf(WeightTensors(model)).size(), trained.size());
  }
}

TEST(FrozenBaseTest, AdaptersBeginAsPeftsAndTheBaseAsWithoutThem) {
  const SmallRun with(SmallLlama(), WithLora({{"rank", 2}})), without;
  for (const fsdp::LocalShard& parameter : with.state.model.root.sharded_parameters()) {
    const at::Tensor values = Whole(with.state.model, parameter.fqn);
    if (!IsAdapterWeight(parameter.fqn)) {
      EXPECT_TRUE(values.equal(Whole(without.state.model, parameter.fqn))) << parameter.fqn;
    } else {
      EXPECT_EQ(values.eq(0).all().item<bool>(), parameter.fqn.ends_with("lora_B.weight"));
    }
  }
}

TEST(FrozenBaseTest, DigestIsOfTheBaseAlone) {
  const Json lora = WithLora({{"rank", 2}});
  SmallRun run(SmallLlama(), lora);
  const std::string digest = DigestOfBase(run.state.model, run.world);
  TrainOneStep(run);
  EXPECT_EQ(DigestOfBase(run.state.model, run.world), digest);
  SmallRun other_rank(SmallLlama(), WithLora({{"rank", 1}, {"targets", {"v_proj"}}}));
  EXPECT_EQ(DigestOfBase(other_rank.state.model, other_rank.world), digest);
  Json changes = lora;
  changes["model"]["seed"] = 1;
  SmallRun other_base(SmallLlama(), changes);
  EXPECT_NE(DigestOfBase(other_base.state.model, other_base.world), digest);
}

TEST(FrozenBaseTest, PatternsOfNoDecayMayBeOfTheBase) {
  SmallRun run;
  const std::vector<fsdp::LocalShard> parameters = run.state.model.root.sharded_parameters();
  TrainConfig::Optimizer options = run.config.optimizer;
  options.no_decay = {"*norm.weight"};
  std::set<std::string> frozen;
  for (const fsdp::LocalShard& parameter : parameters) {
    frozen.insert(parameter.fqn);
  }
  frozen.erase("lm_head.weight");
  const std::vector<OptimizerGroup> groups = GroupParameters(parameters, options, frozen);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_THAT(groups[0].params, ElementsAre("lm_head.weight"));
}

TEST(FrozenBaseTest, FrozenMatricesCostNoGradients) {
  const ModelConfig model = SmallLlama();
  const double all = ModelFlopsPerToken(model, 4), frozen = ModelFlopsPerToken(model, 4, true);
  const double attention = 12 * 8 * 4;  // width * seq_len of one layer
  EXPECT_DOUBLE_EQ((frozen - attention) / (all - attention), 4.0 / 6.0);
}

}  // namespace
}  // namespace fsdprun::worker
