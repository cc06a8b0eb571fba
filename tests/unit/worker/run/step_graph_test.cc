// Steps that are launched as a whole, on the CPU: Note [A step as a graph].

#include "worker/run/step_graph.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/data/data_folder.h"
#include "tests/unit/worker/run/observed_step.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/training_step.h"

namespace fsdprun::worker {
namespace {

using testing::HasSubstr;

/// Counts its steps, and changes nothing, so that only what is around it is looked at: of AdamW on
/// the CPU the host computes the factors.
class IdleOptimizer : public RunOptimizer {
 public:
  explicit IdleOptimizer(std::unique_ptr<RunOptimizer> real) : real_(std::move(real)) {}
  void SetRateFactor(double) override {}
  void Step(const at::Tensor& found_inf) override { EXPECT_EQ(found_inf.numel(), 1); }
  void ZeroGrad() override { real_->ZeroGrad(); }
  std::vector<OptimizerTensors> Tensors() const override { return real_->Tensors(); }
  std::vector<int64_t> ParameterSteps() const override { return real_->ParameterSteps(); }
  void SetParameterSteps(const std::vector<int64_t>& steps) override {
    real_->SetParameterSteps(steps);
  }

 private:
  const std::unique_ptr<RunOptimizer> real_;
};

/// What a training has come to.
struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<int64_t> steps;
  int64_t tokens = 0;
  DataCursor cursor;
  JudgedSteps judged;
};

class StepGraphTest : public DataFolderTest {
 protected:
  static constexpr int kSteps = 9;

  static Json Changes() {
    return {{"data", {{"seq_len", 8}, {"sampler", "global"}}},
            {"train", {{"steps", 100}, {"micro_batch_size", 2}}}};
  }
  std::shared_ptr<const TrainData> DataOf(Documents documents) {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 900; ++i) {
      tokens.push_back(static_cast<uint16_t>((i * i + i / 3) % 16));
    }
    const std::string name = documents == Documents::kMask ? "masked" : "joined";
    return std::make_shared<const TrainData>(
        Windows(StreamOf(Path(name), tokens, {.document_end = 15}), 8, documents));
  }
  /// `between`: called before each step, with its number.
  Trained Train(bool as_graphs, const Json& changes, Documents documents = Documents::kJoin,
                size_t lateness = 0,
                const std::function<void(SmallRun&, TrainingStep&, int)>& between = {}) {
    Json all = Changes();
    MergeConfig(all, changes, "changes");
    SmallRun run(SmallLlama(), all);
    run.config.train.step_graph = as_graphs;
    TrainBatches batches(DataOf(documents), BatchOptions{.sampler = Sampler::kGlobal});
    CheckpointKeeper keeper(run.context(), run.group(), run.state);
    TrainingStep step(run.context(), batches, run.state, keeper, lateness);
    step.GoOnFromState();
    for (int number = 1; number <= kSteps; ++number) {
      if (between) {
        between(run, step, number);
      }
      step.Do();
    }
    step.Flush();
    Trained trained{{},
                    run.state.optimizer->ParameterSteps(),
                    run.state.tokens,
                    run.state.cursor,
                    run.state.judged};
    for (const fsdp::LocalShard& part : run.state.model.root.sharded_parameters()) {
      trained.weights.push_back(part.local.clone());
    }
    return trained;
  }
  static void ExpectSame(const Trained& graphs, const Trained& single) {
    ASSERT_EQ(graphs.weights.size(), single.weights.size());
    for (size_t i = 0; i < graphs.weights.size(); ++i) {
      EXPECT_TRUE(at::equal(graphs.weights[i], single.weights[i])) << "parameter " << i;
    }
    EXPECT_EQ(graphs.steps, single.steps);
    EXPECT_EQ(graphs.tokens, single.tokens);
    EXPECT_EQ(graphs.cursor, single.cursor);
    EXPECT_EQ(graphs.judged, single.judged);
  }
};

TEST_F(StepGraphTest, HasTheBitsOfStepsThatAreLaunchedOneByOne) {
  const Json several = {{"train", {{"grad_accumulation", 3}, {"max_grad_norm", 0.1}}},
                        {"schedule", {{"kind", "linear"}, {"warmup_steps", 4}}}};
  for (const size_t lateness : {0, 1}) {
    ExpectSame(Train(true, several, Documents::kJoin, lateness),
               Train(false, several, Documents::kJoin, lateness));
  }
}

TEST_F(StepGraphTest, AMicroBatchOfAnotherSizeAndTargetsThatDoNotCount) {
  const Json uneven = {{"train", {{"global_batch_size", 5}}}};  // forwards of 2, 2 and 1
  ExpectSame(Train(true, uneven, Documents::kMask), Train(false, uneven, Documents::kMask));
}

TEST_F(StepGraphTest, RecomputedBlocksAndWhatASpikeIsMeasuredBy) {
  const Json spikes = {
      {"train", {{"on_spike", "skip"}, {"spike_window", 3}, {"spike_deviations", 6.0}}}};
  at::Tensor kept;
  const auto spoil = [&kept](SmallRun& run, TrainingStep&, int number) {
    const at::Tensor head = run.state.model.root.sharded_parameters().back().local;
    if (number == 1) {
      CheckpointActivations(run.state.model);
    } else if (number == 7) {
      kept = head.clone();
      head.mul_(300);
    } else if (number == 8) {
      head.copy_(kept);
    }
  };
  const Trained graphs = Train(true, spikes, Documents::kJoin, 0, spoil);
  ExpectSame(graphs, Train(false, spikes, Documents::kJoin, 0, spoil));
  EXPECT_EQ(graphs.steps.front(), kSteps - 1);  // one was left out
}

TEST_F(StepGraphTest, BeginsAnewBehindALoad) {
  const auto load = [](SmallRun& run, TrainingStep& step, int number) {
    if (number == 6) {
      run.state.optimizer->SetParameterSteps(run.state.optimizer->ParameterSteps());
      step.GoOnFromState();
    }
  };
  ExpectSame(Train(true, Json::object(), Documents::kJoin, 0, load),
             Train(false, Json::object(), Documents::kJoin, 0, load));
}

/// A step in memory that stays, as a graph has it.
class StepInMemory {
 public:
  explicit StepInMemory(SmallRun& run)
      : body_(run.context(), run.state, /*may_ignore_targets=*/true) {
    for (int i = 0; i < 2; ++i) {
      const at::Tensor ids = at::zeros({2, 8}, at::kLong);
      batches_.push_back({{ids, ids.clone()}, 2.0, at::ones({})});
    }
    numbers_ = at::zeros({kToldShare});
  }
  /// Another step's batches and numbers.
  std::vector<ObservedCall> Do(int64_t number) {
    for (WeighedBatch& weighed : batches_) {
      const at::Tensor ids = (at::arange(16, at::kLong) * (number + 3)).remainder(16).view({2, 8});
      weighed.batch.inputs.copy_(ids);
      weighed.batch.targets.copy_(ids.roll(1));
      weighed.weight.fill_(1.0 / static_cast<double>(number + 1));
    }
    numbers_.fill_(static_cast<double>(number));
    return CallsOf([this] { values_.push_back(body_.Do(batches_, numbers_)); });
  }

 private:
  StepBody body_;
  std::vector<WeighedBatch> batches_;
  at::Tensor numbers_;
  std::vector<at::Tensor> values_;  // kept, so that no address is another's
};

// What a graph would keep as it was: numbers of the host, and where memory is that was there
// before.
TEST_F(StepGraphTest, EachStepDoesTheSameWithTheSameMemory) {
  for (const char* on_spike : {"off", "skip", "stop"}) {
    Json changes = Changes();
    MergeConfig(changes, {{"train", {{"on_spike", on_spike}, {"on_nonfinite", "skip"}}}},
                "changes");
    if (std::string(on_spike) != "off") {
      MergeConfig(changes, {{"train", {{"spike_window", 3}}}}, "changes");
    }
    SmallRun run(SmallLlama(), changes);
    run.state.optimizer = std::make_unique<IdleOptimizer>(std::move(run.state.optimizer));
    StepInMemory step(run);
    for (int64_t number = 0; number < StepGraph::kStepsBefore; ++number) {
      step.Do(number);
    }
    const std::vector<ObservedCall> recorded = step.Do(10);
    EXPECT_GT(recorded.size(), 100u);
    for (int64_t number = 11; number < 15; ++number) {
      EXPECT_EQ(FirstDifference(recorded, step.Do(number)), "") << on_spike << ", step " << number;
    }
  }
}

TEST(ObservedStepTest, NumbersOfTheHostAndMemoryThatMovesAreNoticed) {
  double factor = 1;
  at::Tensor state = at::zeros({3});
  const at::Tensor fixed = at::ones({3});
  const auto same = [&] { return CallsOf([&] { state.add_(fixed.mul(2.0)); }); };
  EXPECT_EQ(FirstDifference(same(), same()), "");
  const auto scaled = [&] { return CallsOf([&] { fixed.mul(factor++); }); };
  EXPECT_THAT(FirstDifference(scaled(), scaled()), HasSubstr("aten::mul"));
  const auto moved = [&] { return CallsOf([&] { state = state + fixed; }); };
  EXPECT_THAT(FirstDifference(moved(), moved()), HasSubstr("aten::add"));
  bool is_second = false;
  const auto longer = [&] {
    return CallsOf([&] {
      fixed.sum();
      if (std::exchange(is_second, true)) {
        fixed.mean();
      }
    });
  };
  EXPECT_THAT(FirstDifference(longer(), longer()), HasSubstr("aten::mean"));
}

}  // namespace
}  // namespace fsdprun::worker
