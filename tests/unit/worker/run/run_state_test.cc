#include "worker/run/run_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/box.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/random_state.h"

namespace fsdprun::worker {
namespace {

TEST(RandomStateTest, RandomNumbersGoOnWhereTheyWere) {
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

int64_t MostSteps(const RunOptimizer& optimizer) {
  const std::vector<int64_t> steps = optimizer.ParameterSteps();
  return *std::max_element(steps.begin(), steps.end());
}

class RunStateTest : public testing::Test {
 protected:
  SmallRun run_;
};

TEST_F(RunStateTest, CheckpointHasWeightsMomentsAndStepsOfEveryParameter) {
  const checkpoint::State state = CheckpointTensors(run_.state.model, *run_.state.optimizer,
                                                    CaptureSteps(*run_.state.optimizer));
  const auto parameters = run_.state.model.root.sharded_parameters();
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
  EXPECT_EQ(WeightTensors(run_.state.model).tensors.size(), parameters.size());
}

TEST_F(RunStateTest, CheckpointTensorsAreTheTrainingsOwn) {
  ASSERT_FALSE(run_.state.model.root.sharded_parameters().empty());
  // A load fills them in place, so they must be views of what is trained.
  for (const fsdp::LocalShard& slice : WeightTensors(run_.state.model).tensors) {
    slice.local.fill_(0.25);
  }
  for (const fsdp::LocalShard& slice : run_.state.model.root.sharded_parameters()) {
    EXPECT_TRUE((slice.local == 0.25).all().item<bool>()) << slice.fqn;
  }
}

TEST_F(RunStateTest, EveryParameterHasAStepCountOfItsOwn) {
  const auto parameters = run_.state.model.root.sharded_parameters();
  const at::Tensor steps = CaptureSteps(*run_.state.optimizer);
  ASSERT_EQ(steps.numel(), static_cast<int64_t>(parameters.size()));
  // As a load fills them: one parameter of the block has done 7 steps, the rest 9.
  for (const fsdp::LocalShard& slice :
       CheckpointTensors(run_.state.model, *run_.state.optimizer, steps).tensors) {
    if (slice.fqn.ends_with(".step")) {
      slice.local.fill_(slice.fqn.find(".layers.0.mlp.up_proj.") != std::string::npos ? 7 : 9);
    }
  }
  RestoreSteps(steps, *run_.state.optimizer);
  EXPECT_TRUE(CaptureSteps(*run_.state.optimizer).equal(steps));
  EXPECT_EQ(steps.eq(7).sum().item<int64_t>(), 1);
  EXPECT_EQ(MostSteps(*run_.state.optimizer), 9);
}

TEST_F(RunStateTest, StepCountsThatCannotBeGoneOnWithAreRefused) {
  const auto parameters = run_.state.model.root.sharded_parameters();
  const auto error_with = [&](int64_t index, double count) -> std::string {
    const at::Tensor steps = at::full({static_cast<int64_t>(parameters.size())}, 9.0F);
    steps[index].fill_(count);
    try {
      RestoreSteps(steps, *run_.state.optimizer);
    } catch (const checkpoint::MismatchError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error_with(0, -1), "its optimizer has done -1 steps");
  EXPECT_EQ(error_with(0, 2.5), "its optimizer has done 2.5 steps");
  EXPECT_EQ(error_with(0, std::nan("")), "its optimizer has done nan steps");
  EXPECT_EQ(MostSteps(*run_.state.optimizer), 0);  // nothing of what was refused is kept
}

TEST_F(RunStateTest, OneInfiniteWeightIsSeen) {
  EXPECT_TRUE(HasFiniteWeights(run_.state.model, run_.world));
  for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    const at::Tensor last = run_.state.model.root.sharded_parameters().back().local;
    const at::Tensor before = last.clone();
    last[last.numel() - 1].fill_(bad);
    EXPECT_FALSE(HasFiniteWeights(run_.state.model, run_.world)) << bad;
    last.copy_(before);
  }
  EXPECT_TRUE(HasFiniteWeights(run_.state.model, run_.world));
}

/// "key [2, 3]" of each tensor, sorted.
std::set<std::string> KeysAndShapes(const checkpoint::State& state) {
  std::set<std::string> keys;
  for (const fsdp::LocalShard& slice : state.tensors) {
    keys.insert(slice.fqn + " " + Json(slice.global_shape).dump());
  }
  return keys;
}

TEST(CheckpointKeysTest, AreThoseOfACheckpointWithoutAModel) {
  const Json adamw = {{"optimizer", {{"name", "adamw"}}}}, sgd = {{"optimizer", {{"name", "sgd"}}}},
             momentum = {{"optimizer", {{"name", "sgd"}, {"momentum", 0.9}}}},
             muon = {{"optimizer", {{"name", "muon"}}}};
  const Json all = Json::object(), lora = {{"lora", {{"rank", 2}}}},
             frozen = {{"train", {{"freeze", {"model.layers*"}}}}};
  for (const Json& optimizer : {adamw, sgd, momentum, muon}) {
    for (const Json& trained : {all, lora, frozen}) {
      if (optimizer == muon && trained == frozen) {
        continue;  // no matrix of a block is left to it
      }
      Json changes = optimizer;
      changes.update(trained);
      const SmallRun run(SmallLlama(), changes);
      const checkpoint::State expected = CheckpointTensors(run.state.model, *run.state.optimizer,
                                                           CaptureSteps(*run.state.optimizer));
      const checkpoint::State keys = CheckpointKeys(run.config, SmallLlama());
      EXPECT_EQ(KeysAndShapes(keys), KeysAndShapes(expected)) << changes;
      EXPECT_EQ(keys.tensors.size(), expected.tensors.size()) << changes;
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
