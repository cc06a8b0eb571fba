#include "worker/run/rollback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/models/lora.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/data/data_folder.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/failure.h"

namespace fsdprun::worker {
namespace {

/// A run without a launcher, which nothing tells which checkpoints are its own.
class RollbackTest : public DataFolderTest {
 protected:
  explicit RollbackTest(const Json& changes = Json::object()) : run_(SmallLlama(), changes) {
    run_.config.data.seq_len = 8;
    run_.config.train.steps = 100;
    run_.config.checkpoint.is_async = false;
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 400; ++i) {
      tokens.push_back(static_cast<uint16_t>((i * i + i / 3) % 16));
    }
    data_ = std::make_shared<const TrainData>(Windows(StreamOf(Path("tokens"), tokens, {}), 8));
    run_.state.data = RecordData(*data_, run_.config.data);
    batches_.emplace(data_, BatchOptions{.sampler = Sampler::kGlobal});
    run_.state.windows = batches_->window_count();
  }

  void Start(const std::string& dir, const std::string& resume) {
    run_.config.checkpoint.dir = Path(dir);
    run_.config.checkpoint.resume = resume;
    rollback_.reset();
    step_.reset();
    keeper_.emplace(run_.context(), run_.group(), run_.state);
    step_.emplace(run_.context(), *batches_, run_.state, *keeper_, /*lateness=*/0);
    resumer_.emplace(run_.context(), run_.group(), LaunchIdentity{}, *batches_, run_.state);
    rollback_.emplace(run_.context(), run_.state, *resumer_, *keeper_, *step_);
    keeper_->Claim({}, 1, [&] { return resumer_->Resume(); });
    step_->GoOnFromState();
  }
  void End() { keeper_->Release(/*is_stopped=*/false); }
  void TrainTo(int64_t last) {
    while (run_.state.step < last) {
      step_->Do();
    }
    step_->Flush();
  }
  void TrainAndSave(int64_t last) {
    TrainTo(last);
    keeper_->Save();
  }
  /// The state has done it.
  BadStep Bad(int64_t step) const {
    return {step, {{0, step - 1}, {0, step}}, "step " + std::to_string(step) + ": bad"};
  }
  /// Of the step that was done last. Returns what is told on standard error.
  std::string GoBack() {
    testing::internal::CaptureStderr();
    EXPECT_FALSE(rollback_->GoBack(Bad(run_.state.step), /*is_stopping=*/false));
    return testing::internal::GetCapturedStderr();
  }
  bool Has(const std::string& path) const { return std::filesystem::exists(Path(path)); }
  void Damage(const std::string& path) const {
    for (const auto& entry : std::filesystem::directory_iterator(Path(path))) {
      if (entry.path().extension() == ".distcp") {
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file << std::string(200, '\xFF');
      }
    }
  }

  SmallRun run_;
  std::shared_ptr<const TrainData> data_;
  std::optional<TrainBatches> batches_;
  std::optional<CheckpointKeeper> keeper_;
  std::optional<Resumer> resumer_;
  std::optional<TrainingStep> step_;
  std::optional<Rollback> rollback_;
};

TEST_F(RollbackTest, WithoutACheckpointItEndsWithTheBadStep) {
  Start("own", "auto");
  TrainTo(3);
  try {
    rollback_->GoBack(Bad(3), /*is_stopping=*/false);
    FAIL() << "went back";
  } catch (const DivergedError& error) {
    EXPECT_STREQ(error.what(),
                 "step 3: bad, and there is no checkpoint to go back to; set "
                 "checkpoint.every_steps");
  }
}

TEST_F(RollbackTest, GoesBackToItsOwnWhateverWasToBeResumed) {
  Start("old", "none");
  TrainAndSave(2);
  End();
  for (const std::string& resume : {Path("old/step-2"), std::string("none")}) {
    run_.state.step = run_.state.tokens = 0;
    run_.state.cursor = {};
    run_.state.bad_data.clear();
    run_.state.optimizer = MakeOptimizer(run_.state.model, run_.config.optimizer);
    Start("own of " + std::to_string(resume.size()), resume);
    TrainAndSave(4);
    TrainTo(6);
    const std::string said = GoBack();
    EXPECT_EQ(run_.state.step, 4) << resume;
    EXPECT_EQ(run_.state.cursor, (DataCursor{0, 4})) << resume;
    EXPECT_THAT(said, testing::HasSubstr("step 6: bad; training went back to the checkpoint of "
                                         "step 4, and goes on without the data of step 6 (from "
                                         "epoch 0, window 5, to before epoch 0, window 6)"));
    End();
  }
}

TEST_F(RollbackTest, BeforeItsFirstSaveItGoesBackToWhatItHasGoneOnFrom) {
  Start("old", "none");
  TrainAndSave(2);
  const std::string run = run_.state.run;
  End();
  Start("own", Path("old/step-2"));
  TrainTo(4);
  GoBack();
  EXPECT_EQ(run_.state.step, 2);
  EXPECT_EQ(run_.state.run, run);
  EXPECT_TRUE(Has("own/step-2"));
}

// Somebody has named an older checkpoint, to leave the course of the newer ones.
TEST_F(RollbackTest, DoesNotGoBackToACourseThatWasLeft) {
  Start("own", "none");
  TrainAndSave(2);
  TrainAndSave(4);
  End();
  Start("own", Path("own/step-2"));
  TrainTo(6);
  GoBack();
  EXPECT_EQ(run_.state.step, 2);
}

TEST_F(RollbackTest, DamagedCheckpointIsPassedOverAndWrittenAgain) {
  Start("own", "none");
  TrainAndSave(2);
  TrainAndSave(4);
  TrainTo(5);
  Damage("own/step-4");
  EXPECT_THAT(GoBack(), testing::HasSubstr("taking the older"));
  EXPECT_EQ(run_.state.step, 2);
  TrainAndSave(4);
  End();
  Start("own", "auto");
  EXPECT_EQ(run_.state.step, 4);
}

TEST_F(RollbackTest, WhatItHasLearntIsThereIfTheProcessEndsAtOnce) {
  Start("own", "none");
  TrainAndSave(2);
  TrainTo(3);
  GoBack();
  run_.state.bad_data.clear();
  End();
  Start("own", "auto");
  EXPECT_EQ(run_.state.step, 2);
  EXPECT_EQ(run_.state.bad_data, (std::vector<DataRange>{{{0, 2}, {0, 3}}}));
}

TEST_F(RollbackTest, RunThatIsToStopLoadsAndSavesNothing) {
  Start("own", "none");
  TrainAndSave(2);
  TrainTo(3);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(rollback_->GoBack(Bad(3), /*is_stopping=*/true));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("step 3: bad; as the run is to stop, the next start goes back"));
  EXPECT_EQ(run_.state.step, 3);
  EXPECT_TRUE(keeper_->Save(/*is_last=*/true));
  EXPECT_FALSE(Has("own/step-3"));
  EXPECT_TRUE(Has("own/step-2"));
}

TEST_F(RollbackTest, DataThatAreOthersNowHaveNoRangesToLeaveOut) {
  Start("own", "none");
  TrainAndSave(2);
  TrainTo(3);
  GoBack();
  End();
  run_.config.data.on_change = "warn";
  run_.state.data.documents = "separate";
  Start("own", "auto");
  EXPECT_EQ(run_.state.step, 2);
  EXPECT_TRUE(run_.state.bad_data.empty());
}

class AdapterRollbackTest : public RollbackTest {
 protected:
  AdapterRollbackTest() : RollbackTest({{"lora", {{"rank", 2}}}, {"optimizer", {{"lr", 0.1}}}}) {}

  std::map<std::string, at::Tensor> Weights() const {
    std::map<std::string, at::Tensor> weights;
    for (const fsdp::LocalShard& slice : run_.state.model.root.sharded_parameters()) {
      weights[slice.fqn] = slice.local.clone();
    }
    return weights;
  }
  /// As another process, which has not read the base yet.
  void StartAgain(const std::string& base) {
    End();
    run_.config.model.weights = base;
    run_.state.record.adapters.erase(kBaseDigest);
    Start("own", "auto");
  }
  std::string RefusalWith(const std::string& base) {
    return checkpoint::MessageOf<ConfigError>([&] { StartAgain(base); });
  }
};

TEST_F(AdapterRollbackTest, AdaptersGoBackAndTheirBaseStays) {
  Start("own", "none");
  const auto first = Weights();
  TrainAndSave(2);
  const auto saved = Weights();
  TrainTo(4);
  const auto last = Weights();
  GoBack();
  EXPECT_EQ(run_.state.step, 2);
  for (const auto& [name, values] : Weights()) {
    EXPECT_TRUE(values.equal(saved.at(name))) << name;
    EXPECT_EQ(values.equal(last.at(name)), !IsAdapterWeight(name)) << name;
    EXPECT_TRUE(IsAdapterWeight(name) || values.equal(first.at(name))) << name;
  }
}

// Whoever chose another checkpoint, or none, would lose what was trained.
TEST_F(AdapterRollbackTest, ABaseThatIsGoneIsToldAsSuch) {
  Start("own", "none");
  TrainAndSave(2);
  const std::string refusal = RefusalWith(Path("gone"));
  EXPECT_THAT(refusal, testing::HasSubstr("/step-2, which has adapters alone, because of their "
                                          "base: "));
  EXPECT_THAT(refusal, testing::EndsWith("; set model.weights to where the base is, if it was "
                                         "moved, or mend it"));
}

TEST_F(AdapterRollbackTest, OtherAdaptersAreRefusedBeforeTheBaseIsRead) {
  Start("own", "none");
  TrainAndSave(2);
  run_.state.record.adapters["lora.alpha"] = 1.0;
  EXPECT_THAT(RefusalWith(Path("gone")), testing::HasSubstr("lora.alpha was 16.0"));
}

}  // namespace
}  // namespace fsdprun::worker
