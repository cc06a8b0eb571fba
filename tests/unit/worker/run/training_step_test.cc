#include "worker/run/training_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/data/data_folder.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/failure.h"

namespace fsdprun::worker {
namespace {

using Weights = std::map<std::string, at::Tensor>;

class TrainingStepTest : public DataFolderTest {
 protected:
  TrainingStepTest() {
    run_.config.data.seq_len = 8;
    run_.config.train.steps = 100;
    run_.config.train.spike_window = 3;
    run_.config.train.spike_deviations = 6;
    run_.config.train.max_bad_steps = 2;
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 400; ++i) {
      tokens.push_back(static_cast<uint16_t>((i * i + i / 3) % 16));
    }
    data_ = std::make_shared<const TrainData>(Windows(StreamOf(Path("tokens"), tokens, {}), 8));
  }

  void Begin(size_t lateness = 0) {
    batches_.emplace(data_, BatchOptions{.sampler = Sampler::kGlobal});
    keeper_.emplace(run_.context(), run_.group(), run_.state);
    step_.emplace(run_.context(), *batches_, run_.state, *keeper_, lateness);
    step_->GoOnFromState();
  }
  /// As bits, so that NaNs are equal.
  Weights Bits() const {
    Weights weights;
    for (const fsdp::LocalShard& part : run_.state.model.root.sharded_parameters()) {
      weights[part.fqn] = part.local.view(at::kInt).clone();
    }
    return weights;
  }
  static bool Equal(const Weights& a, const Weights& b) {
    return std::all_of(a.begin(), a.end(), [&b](const auto& entry) {
      return at::equal(entry.second, b.at(entry.first));
    });
  }
  at::Tensor Head() const { return run_.state.model.root.sharded_parameters().back().local; }
  void Spoil(double factor) {
    kept_ = Head().clone();
    Head().mul_(factor);
  }
  void Mend() { Head().copy_(kept_); }
  std::string ErrorOfDo() {
    try {
      step_->Do();
      return "";
    } catch (const DivergedError& error) {
      return error.what();
    }
  }

  SmallRun run_;
  std::shared_ptr<const TrainData> data_;
  std::optional<TrainBatches> batches_;
  std::optional<CheckpointKeeper> keeper_;
  std::optional<TrainingStep> step_;
  at::Tensor kept_;
};

TEST_F(TrainingStepTest, ALossThatIsNotFiniteStops) {
  Begin();
  Spoil(std::nan(""));
  const Weights before = Bits();
  EXPECT_EQ(ErrorOfDo().find("step 1: the loss is nan (lr 0.001); the weights were not updated. "),
            0u);
  EXPECT_TRUE(Equal(before, Bits()));
}

TEST_F(TrainingStepTest, SkippedStepsChangeNothingUntilThereAreTooMany) {
  run_.config.train.on_nonfinite = "skip";
  Begin();
  Spoil(std::nan(""));
  const Weights before = Bits();
  step_->Do();
  step_->Do();
  EXPECT_TRUE(Equal(before, Bits()));
  EXPECT_EQ(run_.state.step, 2);
  EXPECT_EQ(run_.state.tokens, 16);
  EXPECT_EQ(run_.state.cursor, (DataCursor{0, 2}));
  EXPECT_EQ(run_.state.optimizer->ParameterSteps().front(), 0);
  EXPECT_NE(ErrorOfDo().find("; it is bad step 3 in a row, and train.max_bad_steps is 2"),
            std::string::npos);
  Mend();
  step_->Do();
  EXPECT_FALSE(Equal(before, Bits()));
}

TEST_F(TrainingStepTest, StepsOnADeviceHaveTheSameBits) {
  const auto train = [this](size_t lateness) {
    FillWeights(run_.config, run_.state.model);
    run_.state.optimizer = MakeOptimizer(run_.state.model, run_.config.optimizer);
    run_.state.step = run_.state.tokens = 0;
    run_.state.cursor = {};
    Begin(lateness);
    for (int step = 0; step < 4; ++step) {
      step_->Do();
    }
    step_->Flush();
    return Bits();
  };
  EXPECT_TRUE(Equal(train(0), train(1)));
}

TEST_F(TrainingStepTest, ReadLateABadStepStopsBeforeAnythingIsUpdated) {
  Begin(/*lateness=*/1);
  step_->Do();
  Spoil(std::nan(""));
  EXPECT_EQ(ErrorOfDo(), "");  // the first step is read
  Mend();
  const Weights before = Bits();
  EXPECT_EQ(ErrorOfDo().find("step 2: the loss is nan"), 0u);
  EXPECT_TRUE(Equal(before, Bits()));
}

TEST_F(TrainingStepTest, ARollbackNamesTheDataOfTheBadStep) {
  run_.config.train.on_nonfinite = "rollback";
  run_.config.train.max_rollbacks = 1;
  for (const size_t lateness : {0, 1}) {
    run_.state.step = 0;
    run_.state.cursor = {};
    Begin(lateness);
    EXPECT_FALSE(step_->Do().bad_step);
    Spoil(std::nan(""));
    StepOutcome outcome = step_->Do();
    Mend();
    const Weights before = Bits();
    if (lateness > 0) {
      EXPECT_FALSE(outcome.bad_step);
      outcome = step_->Do();
    }
    ASSERT_TRUE(outcome.bad_step);
    EXPECT_EQ(outcome.bad_step->data, (DataRange{{0, 1}, {0, 2}}));
    EXPECT_EQ(outcome.bad_step->step, 2);
    EXPECT_EQ(outcome.bad_step->what, "step 2: the loss is nan");
    EXPECT_TRUE(Equal(before, Bits()));
    EXPECT_FALSE(step_->Flush().bad_step);  // nothing is left
  }
}

TEST_F(TrainingStepTest, UpdateThatMadeWeightsInfiniteIsABadStepIfThePolicyIsToGoBack) {
  Begin();
  step_->Do();
  EXPECT_FALSE(step_->BlameLastStep("infinite"));
  run_.config.train.on_nonfinite = "rollback";
  run_.config.train.max_rollbacks = 1;
  for (const size_t lateness : {0, 1}) {
    Begin(lateness);
    const DataCursor before = run_.state.cursor;
    step_->Do();
    step_->Flush();
    const std::optional<BadStep> bad = step_->BlameLastStep("infinite");
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->step, run_.state.step);
    EXPECT_EQ(bad->data, (DataRange{before, run_.state.cursor}));
    EXPECT_EQ(bad->what, "infinite");
    EXPECT_THROW(step_->BlameLastStep("infinite"), DivergedError);  // one time too many
  }
}

/// As rank 1 of 2, which hears nothing of the other.
class SecondOfTwo : public fsdp::Collectives {
 public:
  explicit SecondOfTwo(std::shared_ptr<fsdp::Collectives> alone) : alone_(std::move(alone)) {}
  int64_t rank() const override { return 1; }
  int64_t size() const override { return 2; }
  std::string name() const override { return "second of two"; }
  fsdp::WorkPtr all_gather_into(at::Tensor output, at::Tensor input, fsdp::Issue issue) override {
    return alone_->all_gather_into(output, input, issue);
  }
  fsdp::WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, fsdp::ReduceOp op,
                                    fsdp::Issue issue) override {
    return alone_->reduce_scatter_into(output, input, op, issue);
  }
  fsdp::WorkPtr all_reduce(at::Tensor tensor, fsdp::ReduceOp op, fsdp::Issue issue) override {
    return alone_->all_reduce(tensor, op, issue);
  }
  fsdp::WorkPtr broadcast(at::Tensor tensor, int64_t root, fsdp::Issue issue) override {
    return alone_->broadcast(tensor, root, issue);
  }
  void barrier() override {}

 private:
  const std::shared_ptr<fsdp::Collectives> alone_;
};

// Of 3 windows the first rank takes two and this one the second: its other forward does not count.
TEST_F(TrainingStepTest, ForwardThatDoesNotCountTakesNoDataOfTheNextStep) {
  run_.config.train.global_batch_size = 3;
  run_.config.train.micro_batch_size = 1;
  run_.config.data.sampler = "global";
  std::vector<uint16_t> tokens(400, 3);
  std::fill(tokens.begin() + 3 * 8 + 1, tokens.end(), 9);  // the last target of the third is a 3
  data_ = std::make_shared<const TrainData>(Windows(StreamOf(Path("parts"), tokens, {}), 8));
  run_.world.group = std::make_shared<SecondOfTwo>(run_.world.group);
  for (const fsdp::LocalShard& part : run_.state.model.root.sharded_parameters()) {
    if (part.fqn.find("embed_tokens") != std::string::npos) {
      part.local.view({16, -1})[9].fill_(std::nan(""));
    }
  }
  Begin();
  EXPECT_EQ(ErrorOfDo(), "");
  EXPECT_EQ(run_.state.cursor, (DataCursor{0, 3}));
  EXPECT_NE(ErrorOfDo().find("step 2: the loss is nan"), std::string::npos);
}

TEST_F(TrainingStepTest, DataOfBadStepsAreLeftOut) {
  run_.state.bad_data = {{{0, 1}, {0, 2}}, {{0, 2}, {0, 4}}};
  Begin();
  step_->Do();
  EXPECT_EQ(run_.state.cursor, (DataCursor{0, 1}));
  step_->Do();
  EXPECT_EQ(run_.state.cursor, (DataCursor{0, 5}));
}

TEST_F(TrainingStepTest, ASpikeIsSkippedAndTheWindowGoesIntoTheState) {
  run_.config.train.on_spike = "skip";
  Begin();
  for (int step = 0; step < 4; ++step) {
    step_->Do();
  }
  step_->Flush();
  const JudgedSteps judged = run_.state.judged;
  EXPECT_EQ(judged.losses.size(), 3u);
  Spoil(300);
  const Weights before = Bits();
  step_->Do();
  step_->Flush();
  EXPECT_TRUE(Equal(before, Bits()));
  EXPECT_EQ(run_.state.judged, judged);
  Mend();
  step_->Do();
  EXPECT_FALSE(Equal(before, Bits()));
}

// 3 windows in micro batches of 2 and 1, or in one.
TEST_F(TrainingStepTest, EachWindowOfABatchCountsAsMuch) {
  run_.config.train.global_batch_size = 3;
  const auto train = [this](int64_t micro) {
    run_.config.train.micro_batch_size = micro;
    FillWeights(run_.config, run_.state.model);
    run_.state.optimizer = MakeOptimizer(run_.state.model, run_.config.optimizer);
    run_.state.step = 0;
    run_.state.cursor = {};
    Begin();
    step_->Do();
    EXPECT_EQ(run_.state.cursor, (DataCursor{0, 3}));
    std::map<std::string, at::Tensor> weights;
    for (const fsdp::LocalShard& part : run_.state.model.root.sharded_parameters()) {
      weights[part.fqn] = part.local.clone();
    }
    return weights;
  };
  const auto whole = train(3);
  const auto divided = train(2);
  for (const auto& [fqn, weight] : whole) {
    EXPECT_TRUE(at::allclose(weight, divided.at(fqn), 1e-5, 1e-6)) << fqn;
  }
}

}  // namespace
}  // namespace fsdprun::worker
