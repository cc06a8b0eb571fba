#include "worker/run/frozen_base.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "formats/models/lora.h"
#include "formats/models/model_flops.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/estimate/run_rules.h"
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

/// The weights of `model` as a file, those whose name is `other` in float32 and all else in
/// `dtype`.
void WriteWeights(const ShardedModel& model, at::ScalarType dtype, const std::string& path,
                  const std::string& other = "") {
  Json header = Json::object();
  std::string data;
  for (const fsdp::LocalShard& parameter : model.root.sharded_parameters()) {
    if (IsAdapterWeight(parameter.fqn)) {
      continue;
    }
    // What bfloat16 can tell, in either dtype.
    const at::Tensor values = Whole(model, parameter.fqn)
                                  .to(at::kBFloat16)
                                  .to(parameter.fqn == other ? at::kFloat : dtype);
    const size_t begin = data.size();
    data.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    header[parameter.fqn] = {{"dtype", values.scalar_type() == at::kFloat ? "F32" : "BF16"},
                             {"shape", values.sizes().vec()},
                             {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
}

/// A run of adapters beside the weights in a file.
Json WithBase(const std::string& path, const std::string& param) {
  Json changes = WithLora({{"rank", 2}});
  changes["model"]["weights"] = path;
  changes["precision"] = {{"param", param}};
  changes["optimizer"] = {{"lr", 0.1}};
  return changes;
}

/// Of the parameters of the model itself, or of its adapters.
std::set<at::ScalarType> DtypesOf(const ShardedModel& model, bool of_adapters) {
  std::set<at::ScalarType> dtypes;
  for (const fsdp::LocalShard& parameter : model.root.sharded_parameters()) {
    if (IsAdapterWeight(parameter.fqn) == of_adapters) {
      dtypes.insert(parameter.local.scalar_type());
    }
  }
  return dtypes;
}

std::string RefusalOf(const Json& changes) {
  Json resolved = DefaultConfig();
  resolved["model"]["config"] = "unused";
  resolved["data"]["train"] = {"unused"};
  MergeConfig(resolved, changes, "changes");
  return checkpoint::MessageOf<ConfigError>(
      [&] { CheckFitsModel(ParseConfig(resolved), SmallLlama(), 1); });
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

TEST(FrozenBaseTest, ABaseIsKeptInTheDtypeThatComputesIfItsFilesHaveIt) {
  const checkpoint::TemporaryDirectory directory;
  const std::string narrow = directory / "narrow.safetensors",
                    wide = directory / "wide.safetensors", mixed = directory / "mixed.safetensors";
  {
    const SmallRun model;
    WriteWeights(model.state.model, at::kBFloat16, narrow);
    WriteWeights(model.state.model, at::kFloat, wide);
    WriteWeights(model.state.model, at::kBFloat16, mixed, kFrozenNorm);
  }
  const auto dtypes_with = [](const std::string& path, const std::string& param) {
    const SmallRun run(SmallLlama(), WithBase(path, param));
    EXPECT_THAT(DtypesOf(run.state.model, /*of_adapters=*/true), ElementsAre(at::kFloat));
    return DtypesOf(run.state.model, /*of_adapters=*/false);
  };
  EXPECT_THAT(dtypes_with(narrow, "bfloat16"), ElementsAre(at::kBFloat16));
  EXPECT_THAT(dtypes_with(narrow, "float32"), ElementsAre(at::kFloat));
  EXPECT_THAT(dtypes_with(wide, "bfloat16"), ElementsAre(at::kFloat));
  EXPECT_THAT(dtypes_with(mixed, "bfloat16"), ElementsAre(at::kFloat));
  EXPECT_THAT(dtypes_with("none", "bfloat16"), ElementsAre(at::kFloat));
}

TEST(FrozenBaseTest, AFaultThatPassesDoesNotDecideTheDtype) {
  const checkpoint::TemporaryDirectory directory;
  const std::string path = directory / "base.safetensors";
  WriteWeights(SmallRun().state.model, at::kBFloat16, path);
  {
    const checkpoint::PathFault fault(checkpoint::PathFault::kOpen, "base.safetensors", ESTALE, 1);
    const SmallRun run(SmallLlama(), WithBase(path, "bfloat16"));
    EXPECT_THAT(DtypesOf(run.state.model, /*of_adapters=*/false), ElementsAre(at::kBFloat16));
  }
  const SmallRun wide(SmallLlama(), WithBase(path, "float32"));
  const checkpoint::PathFault fault(checkpoint::PathFault::kOpen, "base.safetensors", ESTALE);
  EXPECT_NO_THROW(ShardModel(wide.config, SmallLlama(), wide.world)) << "no file can decide there";
}

TEST(FrozenBaseTest, ABaseOfHalfTheMemoryComputesTheSame) {
  const checkpoint::TemporaryDirectory directory;
  const std::string narrow = directory / "narrow.safetensors",
                    wide = directory / "wide.safetensors";
  {
    const SmallRun model;
    WriteWeights(model.state.model, at::kBFloat16, narrow);
    WriteWeights(model.state.model, at::kFloat, wide);
  }
  SmallRun halved(SmallLlama(), WithBase(narrow, "bfloat16"));
  SmallRun full(SmallLlama(), WithBase(wide, "bfloat16"));
  const std::string digest = DigestOfBase(full.state.model, full.world);
  EXPECT_EQ(DigestOfBase(halved.state.model, halved.world), digest);
  for (int step = 0; step < 3; ++step) {
    TrainOneStep(halved);
    TrainOneStep(full);
  }
  bool are_trained = false;
  for (const fsdp::LocalShard& parameter : full.state.model.root.sharded_parameters()) {
    const at::Tensor values = Whole(full.state.model, parameter.fqn);
    EXPECT_TRUE(Whole(halved.state.model, parameter.fqn).to(at::kFloat).equal(values))
        << parameter.fqn;
    are_trained = are_trained ||
                  (parameter.fqn.ends_with("lora_B.weight") && values.ne(0).any().item<bool>());
  }
  EXPECT_TRUE(are_trained);
  EXPECT_EQ(DigestOfBase(halved.state.model, halved.world), digest);
}

// What train.freeze keeps is saved with all that can be trained on.
TEST(FrozenBaseTest, WhatIsFrozenWithoutAdaptersIsInFloat32) {
  const checkpoint::TemporaryDirectory directory;
  const std::string narrow = directory / "narrow.safetensors";
  WriteWeights(SmallRun().state.model, at::kBFloat16, narrow);
  Json changes = WithFrozen({kFrozenNorm});
  changes["model"]["weights"] = narrow;
  changes["precision"] = {{"param", "bfloat16"}};
  const SmallRun run(SmallLlama(), changes);
  EXPECT_THAT(DtypesOf(run.state.model, /*of_adapters=*/false), ElementsAre(at::kFloat));
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
