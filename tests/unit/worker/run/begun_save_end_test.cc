// Saves that were begun, and end before their time or in an error.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/checkpoint_keeper.h"

namespace fsdprun::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What a rank answers while a save is waited for.
constexpr int kHasLostTheWay = 3;
constexpr int kGraceIsOver = 4;

/// Calls `before(n, answer)` before the n-th vote, which may raise the answer as another rank does.
class WatchedVotes : public fsdp::Collectives {
 public:
  using Before = std::function<void(int number, at::Tensor& answer)>;
  WatchedVotes(std::shared_ptr<fsdp::Collectives> inner, Before before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  fsdp::WorkPtr all_gather_into(at::Tensor output, at::Tensor input, fsdp::Issue issue) override {
    return inner_->all_gather_into(output, input, issue);
  }
  fsdp::WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, fsdp::ReduceOp op,
                                    fsdp::Issue issue) override {
    return inner_->reduce_scatter_into(output, input, op, issue);
  }
  fsdp::WorkPtr all_reduce(at::Tensor tensor, fsdp::ReduceOp op, fsdp::Issue issue) override {
    if (op == fsdp::ReduceOp::kMax) {
      before_(++votes_, tensor);
    }
    return inner_->all_reduce(tensor, op, issue);
  }
  fsdp::WorkPtr broadcast(at::Tensor tensor, int64_t root, fsdp::Issue issue) override {
    return inner_->broadcast(tensor, root, issue);
  }
  void barrier() override { inner_->barrier(); }

 private:
  const std::shared_ptr<fsdp::Collectives> inner_;
  const Before before_;
  int votes_ = 0;
};

/// Holds up the file of a rank until it is let go, and counts the parts that are written of it.
class WatchedDisk : public StoppableFileSystem {
 public:
  void LetGo() { may_go_.set_value(); }
  /// Of the parts, unless it is 0.
  std::atomic<int> error = 0;
  std::atomic<int> written = 0;

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    if (effect.name == "reserve") {
      goes_.wait();
    }
    const bool is_part = effect.name == "write" && effect.path.ends_with(".distcp");
    if (is_part && error != 0) {
      return error;
    }
    const int given_up = StoppableFileSystem::Intercept(effect);
    written += is_part && given_up == 0 ? 1 : 0;
    return given_up;
  }

 private:
  std::promise<void> may_go_;
  const std::shared_future<void> goes_ = may_go_.get_future().share();
};

class BegunSaveEndTest : public testing::Test {
 protected:
  BegunSaveEndTest() {
    run_.config.checkpoint.dir = directory_.path();
    run_.config.train.steps = 4;
    run_.config.checkpoint.every_steps = 1;
    run_.state.run = "this run";
  }

  void Watch(const WatchedVotes::Before& before) {
    run_.world.group = std::make_shared<WatchedVotes>(run_.world.group, before);
  }
  /// Another rank answers `answer` to the first question; then the file is held up no longer.
  void AnswerOnce(int answer) {
    Watch([this, answer](int number, at::Tensor& mine) {
      if (number == 1) {
        mine.fill_(answer);
      } else if (number == 2) {
        disk_->LetGo();
      }
    });
  }
  void Begin(CheckpointKeeper& keeper) {
    keeper.Claim({}, 1, [] { return std::nullopt; });
    run_.state.step = 1;
    EXPECT_FALSE(keeper.Save());
    EXPECT_TRUE(keeper.is_saving());
    run_.state.step = 2;
  }
  bool Has(int64_t step) const {
    return std::filesystem::exists(directory_ / ("step-" + std::to_string(step)));
  }

  const checkpoint::TemporaryDirectory directory_;
  SmallRun run_;
  const std::shared_ptr<WatchedDisk> disk_ = std::make_shared<WatchedDisk>();
};

// Its own grace may be longer, or it may not have heard of the stop yet.
TEST_F(BegunSaveEndTest, GraceOfAnotherRankEndsTheWritingOfThisOne) {
  AnswerOnce(kGraceIsOver);
  CheckpointKeeper keeper(run_.context(), run_.group(), run_.state, disk_);
  Begin(keeper);
  testing::internal::CaptureStdout();
  EXPECT_TRUE(keeper.Save(/*is_last=*/true));
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("step 1 was given up, because the grace of the stop is over"));
  EXPECT_EQ(disk_->written, 0);
  EXPECT_FALSE(Has(1) || Has(2));
}

TEST_F(BegunSaveEndTest, WayThatAnotherRankHasLostEndsTheWritingAndTheNextSaveIsWhole) {
  AnswerOnce(kHasLostTheWay);
  CheckpointKeeper keeper(run_.context(), run_.group(), run_.state, disk_);
  Begin(keeper);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(keeper.Save());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("step 1 failed: "), HasSubstr("a rank has lost the way")));
  EXPECT_FALSE(keeper.Finish(/*is_wanted=*/true));
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(Has(2));
}

TEST_F(BegunSaveEndTest, FailureOfTheOneBeforeDoesNotKeepTheLastFromBeingWritten) {
  for (const char* on_failure : {"stop", "warn"}) {
    const checkpoint::TemporaryDirectory directory;
    run_.config.checkpoint.dir = directory.path();
    run_.config.checkpoint.on_failure = on_failure;
    const auto disk = std::make_shared<WatchedDisk>();
    disk->LetGo();
    disk->error = ENOSPC;
    CheckpointKeeper keeper(run_.context(), run_.group(), run_.state, disk);
    Begin(keeper);
    while (keeper.IsWriting()) {
      std::this_thread::yield();
    }
    disk->error = 0;
    testing::internal::CaptureStderr();
    EXPECT_FALSE(keeper.Save(/*is_last=*/true));
    EXPECT_THAT(
        testing::internal::GetCapturedStderr(),
        AllOf(HasSubstr("checkpoint of step 1 failed"), HasSubstr("the last one is written now")));
    EXPECT_TRUE(std::filesystem::exists(directory / "step-2"));
  }
}

// A step has ended the run, and told that the save has ended that was begun before it.
TEST_F(BegunSaveEndTest, FailureThatIsToldWithTheLastStepDoesNotKeepTheLastFromBeingWritten) {
  run_.config.checkpoint.on_failure = "stop";
  run_.config.train.steps = 2;
  disk_->LetGo();
  disk_->error = ENOSPC;
  CheckpointKeeper keeper(run_.context(), run_.group(), run_.state, disk_);
  Begin(keeper);
  while (keeper.IsWriting()) {
    std::this_thread::yield();
  }
  disk_->error = 0;
  testing::internal::CaptureStderr();
  EXPECT_FALSE(keeper.Finish(/*is_wanted=*/true, /*is_last_left=*/true));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the last one is written now"));
  EXPECT_FALSE(keeper.Save());
  EXPECT_FALSE(keeper.Save(/*is_last=*/true));
  EXPECT_TRUE(Has(2));
}

TEST_F(BegunSaveEndTest, WhoHasAskedForTheLastHearsOfThatAlone) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  {
    ControlChannel channel(ends[0]);
    const RunContext own = run_.context();
    const RunContext context{own.config, own.world, channel, own.vitals, own.report, own.stop};
    disk_->LetGo();
    disk_->error = ENOSPC;
    CheckpointKeeper keeper(context, run_.group(), run_.state, disk_);
    Begin(keeper);
    while (keeper.IsWriting()) {
      std::this_thread::yield();
    }
    disk_->error = 0;
    run_.state.step = 1;
    testing::internal::CaptureStderr();
    EXPECT_FALSE(keeper.Save(/*is_last=*/true));
    testing::internal::GetCapturedStderr();
  }
  std::string told(4096, '\0');
  const ssize_t count = read(ends[1], told.data(), told.size());
  close(ends[1]);
  told.resize(count > 0 ? static_cast<size_t>(count) : 0);
  EXPECT_THAT(told, HasSubstr("step-1"));
  EXPECT_THAT(told, testing::Not(HasSubstr("\"error\"")));
}

}  // namespace
}  // namespace fsdprun::worker
