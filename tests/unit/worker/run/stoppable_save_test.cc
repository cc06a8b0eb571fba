#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/checkpoint/thread_ranks.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/run/checkpoint_keeper.h"
#include "worker/run/stoppable_file_system.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kElements = 1000;

/// Names in the directory, without those that begin with a dot.
std::vector<std::string> Visible(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().filename().string()[0] != '.') {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

checkpoint::State Half(int64_t rank) {
  checkpoint::State state;
  const int64_t half = kElements / 2;
  state.tensors.push_back(
      {{"model.a", {kElements}, {{{rank * half}, {half}}}, {}}, at::full({half}, 1.0F)});
  return state;
}

/// Saves steps 1 and 2 with two ranks, of which rank 1 gives up step 2 at its question `give_up_at`
/// (counted from 1). Returns each rank's errno of step 2, 0 without an error.
std::vector<int> SaveTwice(const std::string& directory, int give_up_at) {
  std::vector<int> errors(2, -1);
  checkpoint::ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& ranks) {
    const int64_t rank = ranks->rank();
    bool is_counting = false;
    int questions = 0;
    checkpoint::SaverOptions options;
    options.dir = directory;
    options.group.collectives = ranks;
    options.chunk_bytes_max = 100;  // so that a rank is asked often
    options.file_system = std::make_shared<StoppableFileSystem>(
        [&] { return is_counting && ++questions >= give_up_at; });
    checkpoint::Saver saver(options);
    saver.Save(1, Half(rank));
    is_counting = rank == 1;
    try {
      saver.Save(2, Half(rank));
      errors[static_cast<size_t>(rank)] = 0;
    } catch (const checkpoint::CheckpointError& error) {
      errors[static_cast<size_t>(rank)] = error.error_number();
    }
  });
  return errors;
}

TEST(StoppableSaveTest, RankInTheMiddleOfItsFileEndsTheSaveOfAllAndLeavesNothing) {
  const checkpoint::TemporaryDirectory directory;
  EXPECT_EQ(SaveTwice(directory.path(), 10), (std::vector<int>{ECANCELED, ECANCELED}));
  EXPECT_EQ(Visible(directory.path()), (std::vector<std::string>{"latest", "step-1"}));
}

TEST(StoppableSaveTest, SaveWhoseFilesAreWrittenIsFinished) {
  const checkpoint::TemporaryDirectory directory;
  EXPECT_EQ(SaveTwice(directory.path(), 100'000), (std::vector<int>{0, 0}));
  EXPECT_EQ(Visible(directory.path()), (std::vector<std::string>{"latest", "step-1", "step-2"}));
}

/// Holds up the removal of old checkpoints until it is told to go on.
class SlowToRemove : public StoppableFileSystem {
 public:
  std::atomic<bool> is_full{false};
  void LetGo() { may_go_.set_value(); }
  std::optional<int64_t> FreeBytes(const std::string& /*path*/) override {
    return is_full ? 0 : int64_t{1} << 40;
  }

 protected:
  int Intercept(const checkpoint::Effect& effect) override {
    if (effect.name == "remove" && effect.path.find(".delete-") != std::string::npos) {
      went_.wait();
    }
    return StoppableFileSystem::Intercept(effect);
  }

 private:
  std::promise<void> may_go_;
  const std::shared_future<void> went_ = may_go_.get_future().share();
};

TEST(StoppableSaveTest, SaveThatWaitsForRoomIsGivenUpWithTheGrace) {
  const checkpoint::TemporaryDirectory directory;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ControlChannel channel(ends[1]);
  StopListener stop(channel);
  SmallRun run;
  run.config.checkpoint.dir = directory.path();
  run.config.checkpoint.keep = 1;
  run.config.checkpoint.is_async = true;
  run.config.train.steps = 9;
  run.state.run = "this run";
  const auto disk = std::make_shared<SlowToRemove>();
  CheckpointKeeper keeper({run.config, run.world, channel, run.vitals, run.report, stop},
                          run.group(), run.state, disk);
  keeper.Claim({}, 1, [] { return std::nullopt; });
  for (const int64_t step : {1, 2}) {
    run.state.step = step;
    EXPECT_FALSE(keeper.Save());
    EXPECT_FALSE(keeper.Finish(/*is_wanted=*/true));
  }
  disk->is_full = true;
  const std::string request = "{\"v\":1,\"type\":\"stop\",\"grace_ms\":1}\n";
  ASSERT_EQ(send(ends[0], request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  run.state.step = 3;
  testing::internal::CaptureStdout();
  EXPECT_TRUE(keeper.Save(/*is_last=*/true));
  EXPECT_NE(testing::internal::GetCapturedStdout().find("step 3 was given up"), std::string::npos);
  disk->LetGo();
  close(ends[0]);
}

}  // namespace
}  // namespace fsdprun::worker
