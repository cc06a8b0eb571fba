#include "worker/run/checkpoint_keeper.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/checkpoint/thread_ranks.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/checkpoint/channel.h"
#include "worker/run/failure.h"
#include "worker/run/save_channel.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MessageOf;

/// Writes of ranks' files fail with this, unless it is 0.
class FaultyDisk : public StoppableFileSystem {
 public:
  int error = 0;
  /// Files of ranks that were begun.
  std::atomic<int> begun = 0;

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    begun += effect.name == "create" && effect.path.ends_with(".distcp") ? 1 : 0;
    return effect.name == "write" && effect.path.ends_with(".distcp") ? error : 0;
  }
};

class CheckpointKeeperTest : public testing::Test {
 protected:
  CheckpointKeeperTest() {
    run_.config.checkpoint.dir = directory_.path();
    run_.config.train.steps = 4;
    run_.config.checkpoint.every_steps = 1;
    run_.config.checkpoint.is_async = false;
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

TEST_F(CheckpointKeeperTest, FaultThatDoesNotPassByItselfIsToldAndTriedAgain) {
  Claim();
  disk_->error = EACCES;
  EXPECT_NE(SaveAfter(1).find("training goes on"), std::string::npos);
  disk_->error = 0;
  EXPECT_EQ(SaveAfter(2), "");
  EXPECT_TRUE(Has(2));
}

TEST_F(CheckpointKeeperTest, FirstFailureEndsTheRunIfThatIsWhatTheConfigurationSays) {
  run_.config.checkpoint.on_failure = "stop";
  Claim();
  run_.state.step = 1;
  disk_->error = ENOSPC;
  const std::string error = MessageOf<checkpoint::CheckpointError>([&] { keeper_.Save(); });
  EXPECT_NE(error.find("checkpoint.on_failure is stop"), std::string::npos) << error;
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
  const at::Tensor weight = run_.state.model.root.sharded_parameters().front().local;
  const at::Tensor before = weight.clone();
  for (const double value : {std::nan(""), double{INFINITY}, -double{INFINITY}}) {
    weight.copy_(before);
    weight.view({-1})[1].fill_(value);
    EXPECT_THROW(keeper_.Save(), DivergedError) << value;
    EXPECT_FALSE(Has(1));
  }
  weight.copy_(before);
  EXPECT_FALSE(keeper_.Save());
  EXPECT_TRUE(Has(1));
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

TEST_F(CheckpointKeeperTest, StepThatWasGoneBackToIsWrittenOnceMore) {
  Claim();
  SaveAfter(1);
  SaveAfter(2);
  EXPECT_EQ(keeper_.saved_steps(), (std::set<int64_t>{1, 2}));
  keeper_.GoOnFrom(1);
  EXPECT_EQ(disk_->begun, 2);
  SaveAfter(1);
  SaveAfter(1);
  EXPECT_EQ(disk_->begun, 3);
}

TEST_F(CheckpointKeeperTest, StepThatMayNotBeSavedIsNotTheLast) {
  Claim();
  SaveAfter(1);
  run_.state.step = 2;
  testing::internal::CaptureStdout();
  keeper_.ForgoLast("it was bad");
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("no checkpoint of step 2 is written: it was bad; the newest is of step 1"),
            std::string::npos)
      << said;
  EXPECT_TRUE(keeper_.Save(/*is_last=*/true));
  EXPECT_FALSE(Has(2));
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

/// Saves are begun.
class AsyncKeeperTest : public CheckpointKeeperTest {
 protected:
  AsyncKeeperTest() { run_.config.checkpoint.is_async = true; }

  void BeginAfter(int64_t step) {
    run_.state.step = step;
    EXPECT_FALSE(keeper_.Save());
    EXPECT_TRUE(keeper_.is_saving());
  }
  /// What it tells on standard error.
  std::string Finish(bool must_stop = false) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(keeper_.Finish(/*is_wanted=*/true), must_stop);
    EXPECT_FALSE(keeper_.is_saving());
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(AsyncKeeperTest, WhatWasBegunIsToldWhenItHasEnded) {
  Claim();
  BeginAfter(1);
  const at::Tensor weight = run_.state.model.root.sharded_parameters().front().local;
  keeper_.AwaitCopy();
  weight.fill_(std::nan(""));  // No longer of interest.
  run_.state.step = 2;
  testing::internal::CaptureStdout();
  EXPECT_EQ(Finish(), "");
  EXPECT_NE(testing::internal::GetCapturedStdout().find("step-1"), std::string::npos);
  EXPECT_TRUE(Has(1));
  EXPECT_FALSE(keeper_.IsWriting());
  keeper_.AwaitCopy();  // Of nothing.
}

TEST_F(AsyncKeeperTest, FullDiskIsToldAndTheNextPeriodTriesAgain) {
  Claim();
  disk_->error = ENOSPC;
  BeginAfter(1);
  run_.state.step = 2;
  const std::string warning = Finish();
  for (const char* words : {"warning: ", "step 1 failed", "there is none of this run",
                            "training goes on and tries again at the next period"}) {
    EXPECT_NE(warning.find(words), std::string::npos) << words << " in " << warning;
  }
  disk_->error = 0;
  BeginAfter(3);
  EXPECT_EQ(Finish(), "");
  EXPECT_TRUE(Has(3));
}

TEST_F(AsyncKeeperTest, FirstFailureEndsTheRunIfThatIsWhatTheConfigurationSays) {
  run_.config.checkpoint.on_failure = "stop";
  Claim();
  disk_->error = ENOSPC;
  BeginAfter(1);
  EXPECT_THROW(keeper_.Finish(/*is_wanted=*/true), checkpoint::CheckpointError);
}

TEST_F(AsyncKeeperTest, SaveThatIsDueComesAfterTheOneInTheMaking) {
  Claim();
  for (const int64_t step : {1, 2, 3}) {
    BeginAfter(step);
    EXPECT_FALSE(keeper_.Save());  // It is on its way.
  }
  EXPECT_TRUE(Has(1) && Has(2));
  Finish();
  EXPECT_TRUE(Has(3));
}

TEST_F(AsyncKeeperTest, LastSaveIsThereAtOnceAfterTheOneInTheMaking) {
  Claim();
  BeginAfter(1);
  run_.state.step = 2;
  EXPECT_FALSE(keeper_.Save(/*is_last=*/true));
  EXPECT_TRUE(Has(1) && Has(2));
  EXPECT_FALSE(keeper_.is_saving());
}

TEST_F(AsyncKeeperTest, LastSaveThatWasBegunIsFinishedAndNotDoneTwice) {
  Claim();
  BeginAfter(1);
  EXPECT_FALSE(keeper_.Save(/*is_last=*/true));
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(disk_->begun, 1);
}

TEST_F(AsyncKeeperTest, SaveOfTheLastStepIsLeftToTheLastSave) {
  run_.config.checkpoint.on_failure = "stop";
  Claim();
  run_.state.step = run_.config.train.steps;
  disk_->error = ENOSPC;  // which nothing meets
  EXPECT_FALSE(keeper_.Save());
  EXPECT_FALSE(keeper_.is_saving());
  EXPECT_FALSE(Has(run_.config.train.steps));
  disk_->error = 0;
  EXPECT_FALSE(keeper_.Save(/*is_last=*/true));
  EXPECT_TRUE(Has(run_.config.train.steps));
}

TEST_F(AsyncKeeperTest, SaveThatIsGivenUpEndsTheRunAndIsNotTriedAgain) {
  Claim();
  disk_->error = ECANCELED;
  BeginAfter(1);
  Finish(/*must_stop=*/true);
  disk_->error = 0;
  run_.state.step = 2;
  EXPECT_TRUE(keeper_.Save(/*is_last=*/true));
  EXPECT_FALSE(Has(1) || Has(2));
}

TEST_F(AsyncKeeperTest, WeightsThatAreNotFiniteAreNotBegun) {
  Claim();
  BeginAfter(1);
  keeper_.AwaitCopy();
  run_.state.step = 2;
  run_.state.model.root.sharded_parameters().front().local.fill_(std::nan(""));
  EXPECT_THROW(keeper_.Save(), DivergedError);
  EXPECT_TRUE(Has(1));
}

TEST_F(AsyncKeeperTest, WhatWasBegunBeforeAnErrorOfAllRanksIsFinished) {
  Claim();
  keeper_.FinishBeforeError();  // Of nothing.
  BeginAfter(1);
  keeper_.FinishBeforeError();
  EXPECT_TRUE(Has(1));
  run_.config.checkpoint.on_failure = "stop";
  disk_->error = ENOSPC;
  BeginAfter(2);
  testing::internal::CaptureStderr();
  keeper_.FinishBeforeError();  // The error that ends the run is another.
  EXPECT_NE(testing::internal::GetCapturedStderr().find("step 2 failed"), std::string::npos);
}

TEST_F(AsyncKeeperTest, SaveAfterAWayThatWasLostIsBegunOverAnother) {
  Claim();
  disk_->error = checkpoint::kChannelLost;
  BeginAfter(1);
  EXPECT_NE(Finish().find("step 1 failed"), std::string::npos);
  disk_->error = 0;
  BeginAfter(2);
  EXPECT_EQ(Finish(), "");
  EXPECT_TRUE(Has(2));
}

TEST_F(AsyncKeeperTest, FirstStepsBesideASaveMayTakeAsLongAsTheCopy) {
  Claim();
  const auto usual = keeper_.StepTimeout();
  BeginAfter(1);
  EXPECT_GT(keeper_.StepTimeout(), usual);
  keeper_.AwaitCopy();
  run_.state.step = 2;  // another rank may still copy
  EXPECT_GT(keeper_.StepTimeout(), usual);
  run_.state.step = 3;
  EXPECT_EQ(keeper_.StepTimeout(), usual);
  Finish();
}

/// Holds up the first file of a rank until it is let go.
class HeldDisk : public StoppableFileSystem {
 public:
  void LetGo() { may_go_.set_value(); }

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    if (effect.name == "reserve") {
      goes_.wait();
    }
    return 0;
  }

 private:
  std::promise<void> may_go_;
  const std::shared_future<void> goes_ = may_go_.get_future().share();
};

TEST_F(AsyncKeeperTest, HungSaveIsToldOnceAndTrainingGoesOnWithoutTheNext) {
  const auto disk = std::make_shared<HeldDisk>();
  const SavePace impatient(/*late_min=*/std::chrono::seconds(0),
                           /*wait_max=*/std::chrono::seconds(0));
  CheckpointKeeper keeper(run_.context(), run_.group(), run_.state, disk, impatient);
  keeper.Claim({}, 1, [] { return std::nullopt; });
  testing::internal::CaptureStderr();
  for (run_.state.step = 1; run_.state.step < 4; ++run_.state.step) {
    EXPECT_FALSE(keeper.Save());
    EXPECT_TRUE(keeper.IsWriting());
    keeper.WarnIfLate();
  }
  std::string said = testing::internal::GetCapturedStderr();
  size_t count = 0;
  for (size_t at = 0; (at = said.find("has been in the making for 0 s; is the file system", at)) !=
                      std::string::npos;
       ++at) {
    ++count;
  }
  EXPECT_EQ(count, 1u) << said;
  EXPECT_NE(said.find("checkpoint of step 2 failed: that of step 1 has been in the making"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("tries again at the next period"), std::string::npos) << said;
  disk->LetGo();
  EXPECT_FALSE(keeper.Save(/*is_last=*/true));  // In any case after that which was begun.
  EXPECT_TRUE(Has(1) && Has(4));
  EXPECT_FALSE(Has(2) || Has(3));
}

TEST(SaveChannelTest, WorldOfOneNeedsNoStore) {
  const SmallRun run;
  const auto channel = MakeSaveChannel(run.group());
  EXPECT_EQ(channel->Ask("mine", [](const auto& texts) { return texts.at(0) + "!"; }), "mine!");
  EXPECT_EQ(channel->Broadcast("mine"), "mine");
}

TEST(SaveChannelTest, StoreThatNobodyServesIsToldAndThereIsNoChannel) {
  for (const auto& [name, value] :
       {std::pair("WORLD_SIZE", "2"), std::pair("RANK", "1"), std::pair("MASTER_ADDR", "127.0.0.1"),
        std::pair("MASTER_PORT", "1")}) {
    setenv(name, value, 1);
  }
  std::string warning;
  checkpoint::ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& ranks) {
    checkpoint::Group group;
    group.collectives = ranks;
    group.warn = [&](const std::string& text) { warning = text; };  // On rank 0 only.
    EXPECT_EQ(MakeSaveChannel(group, std::chrono::milliseconds(50)), nullptr);
  });
  EXPECT_NE(warning.find("written between steps"), std::string::npos) << warning;
  for (const char* name : {"WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    unsetenv(name);
  }
}

}  // namespace
}  // namespace fsdprun::worker
