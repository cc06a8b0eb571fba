#include "worker/run/checkpoint_keeper.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/failure.h"
#include "worker/run/training_state.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MessageOf;

/// Writes of ranks' files fail with this, unless it is 0.
class FaultyDisk : public checkpoint::FileSystem {
 public:
  int error = 0;

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    return effect.name == "write" && effect.path.ends_with(".distcp") ? error : 0;
  }
};

class CheckpointKeeperTest : public testing::Test {
 protected:
  CheckpointKeeperTest() {
    run_.config.checkpoint.dir = directory_.path();
    run_.config.train.steps = 4;
    run_.config.checkpoint.every_steps = 1;
    run_.state.run = "this run";
  }

  /// Claims for a new run, or one that goes on from `resumed`.
  void Claim(std::optional<int64_t> resumed = std::nullopt, LaunchIdentity identity = {}) {
    keeper_.Claim(identity, 1, [&] {
      ++resumes_;
      return resumed;
    });
  }
  bool Has(int64_t step) const {
    return std::filesystem::exists(directory_ / ("step-" + std::to_string(step)));
  }
  /// Saves after `step` steps; what it tells on standard error.
  std::string SaveAfter(int64_t step) {
    run_.state.step = step;
    testing::internal::CaptureStderr();
    EXPECT_FALSE(keeper_.Save());
    return testing::internal::GetCapturedStderr();
  }

  const checkpoint::TemporaryDirectory directory_;
  SmallRun run_;
  std::shared_ptr<FaultyDisk> disk_ = std::make_shared<FaultyDisk>();
  CheckpointKeeper keeper_{run_.context(), run_.group(), run_.state, disk_};
  int resumes_ = 0;
};

TEST_F(CheckpointKeeperTest, FullDiskIsToldAndTheNextPeriodTriesAgain) {
  Claim();
  disk_->error = ENOSPC;
  const std::string warning = SaveAfter(1);
  for (const char* words : {"warning: ", "step 1", "there is none of this run",
                            "training goes on and tries again at the next period"}) {
    EXPECT_NE(warning.find(words), std::string::npos) << words << " in " << warning;
  }
  EXPECT_FALSE(Has(1));
  disk_->error = 0;
  EXPECT_EQ(SaveAfter(2), "");
  EXPECT_TRUE(Has(2));
}

TEST_F(CheckpointKeeperTest, LastSaveMustSucceed) {
  Claim();
  SaveAfter(1);
  run_.state.step = 2;
  disk_->error = ENOSPC;
  const std::string error =
      MessageOf<checkpoint::CheckpointError>([&] { keeper_.Save(/*is_last=*/true); });
  EXPECT_EQ(error.find("the last "), 0u) << error;
  EXPECT_NE(error.find("the newest is of step 1"), std::string::npos) << error;
}

TEST_F(CheckpointKeeperTest, FaultThatCannotPassEndsTheRun) {
  Claim();
  run_.state.step = 1;
  disk_->error = EACCES;
  EXPECT_THROW(keeper_.Save(), checkpoint::CheckpointError);
}

TEST_F(CheckpointKeeperTest, SaveThatIsGivenUpEndsTheRunAndIsNotTriedAgain) {
  Claim();
  SaveAfter(1);
  run_.state.step = 2;
  disk_->error = ECANCELED;
  EXPECT_TRUE(keeper_.Save());
  disk_->error = 0;
  EXPECT_TRUE(keeper_.Save(/*is_last=*/true));
  EXPECT_FALSE(Has(2));
}

TEST_F(CheckpointKeeperTest, WeightsThatAreNotFiniteAreNotSaved) {
  Claim();
  run_.state.step = 1;
  run_.state.model.root.sharded_parameters().front().local.fill_(std::nan(""));
  EXPECT_THROW(keeper_.Save(), DivergedError);
  EXPECT_FALSE(Has(1));
}

TEST_F(CheckpointKeeperTest, StepThatIsSavedIsNotWrittenAgain) {
  Claim();
  SaveAfter(1);
  disk_->error = EACCES;  // which nothing meets
  EXPECT_FALSE(keeper_.Save());
  EXPECT_FALSE(keeper_.Save(/*is_last=*/true));
}

TEST_F(CheckpointKeeperTest, StepThatWasLoadedIsNotWrittenAgain) {
  Claim(/*resumed=*/1);
  SaveAfter(1);
  EXPECT_FALSE(Has(1));
}

TEST_F(CheckpointKeeperTest, CheckpointOfAnotherProgramInTheWayIsToldBeforeTraining) {
  std::filesystem::create_directory(directory_ / "step-3");
  std::ofstream(directory_ / "step-3/model.bin") << "precious";
  EXPECT_NE(MessageOf<ConfigError>([&] { Claim(); }).find("step-3"), std::string::npos);
}

TEST_F(CheckpointKeeperTest, ResumesOnceUnlessSomebodySavesMeanwhile) {
  Claim();
  EXPECT_EQ(resumes_, 1);
  SaveAfter(1);
  keeper_.Release(/*is_stopped=*/false);

  // The holder of the directory publishes while the next start loads.
  CheckpointKeeper holder(run_.context(), run_.group(), run_.state);
  holder.Claim({}, 1, [] { return std::optional<int64_t>(1); });
  int resumes = 0;
  CheckpointKeeper next(run_.context(), run_.group(), run_.state);
  next.Claim({}, 1, [&]() -> std::optional<int64_t> {
    if (++resumes == 1) {
      run_.state.step = 2;
      holder.Save();
      holder.Release(/*is_stopped=*/false);
    }
    return 2;
  });
  EXPECT_EQ(resumes, 2);
}

TEST_F(CheckpointKeeperTest, RequestWithoutADirectoryIsAnswered) {
  run_.config.checkpoint.dir.clear();
  Claim();
  testing::internal::CaptureStdout();
  EXPECT_FALSE(keeper_.SaveOnRequest());
  EXPECT_NE(testing::internal::GetCapturedStdout().find("checkpoint.dir is not set"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdprun::worker
