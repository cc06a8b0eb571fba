#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::worker::checkpoint {
namespace {

using ::testing::HasSubstr;

/// A file system that fails with `error`, or dies, at the effect number `at`.
class Faulty : public FileSystem {
 public:
  Faulty(int64_t at, int error, std::string effect = {})
      : at_(at), error_(error), effect_(std::move(effect)) {}

 protected:
  int Intercept(std::string_view effect, const std::string&) override {
    if ((!effect_.empty() && effect != effect_) || count_++ != at_) {
      return 0;
    }
    if (error_ == 0) {
      kill(getpid(), SIGKILL);
    }
    return error_;
  }

 private:
  std::atomic<int64_t> count_{0};
  int64_t at_;
  int error_;
  std::string effect_;
};

TEST(CheckpointFaultTest, AnyFailingEffectThrowsOnAllRanksAndPublishesNothing) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1});
  for (const char* effect : {"create", "reserve", "write", "sync", "make_directory"}) {
    std::atomic<int> thrown{0};
    ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      Saver good(OptionsOf(dir.path(), GroupOf(collectives)));
      SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
      const bool is_faulty = collectives->rank() == (effect[0] == 'm' ? 0 : 1);
      options.file_system = is_faulty
                                ? std::make_shared<Faulty>(effect[0] == 'm' ? 1 : 0, ENOSPC, effect)
                                : std::make_shared<FileSystem>();
      Saver saver(std::move(options));
      const std::string message =
          MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(collectives->rank(), 2, 2)); });
      EXPECT_THAT(message, HasSubstr("the disk is full"));
      EXPECT_THAT(message, HasSubstr("bytes are free"));
      ++thrown;
    });
    EXPECT_EQ(thrown, 2) << effect;
    EXPECT_EQ(LoadAndCheck(dir.path(), 2), 1) << effect;
    EXPECT_FALSE(DirectoryExists(dir / "step-2"));
  }
}

TEST(CheckpointFaultTest, KilledAtAnyEffectTheNewestGoodOneLoads) {
  int64_t effect = 0;
  for (bool has_died = true; has_died; ++effect) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1, 2});
    const pid_t child = fork();
    if (child == 0) {
      ThreadRanks ranks(1);
      ranks.Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
        SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
        options.file_system = std::make_shared<Faulty>(effect, 0);
        options.keep = 1;
        Saver saver(std::move(options));
        saver.Save(2, StateOf(0, 1, 2));  // replaces
        saver.Save(3, StateOf(0, 1, 3));
      });
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    has_died = WIFSIGNALED(status);
    EXPECT_GE(LoadAndCheck(dir.path(), 1), 2) << "killed at effect " << effect;
    SaveSteps(dir.path(), 2, {9}, 1);
    EXPECT_THAT(ListDirectory(dir.path()),
                ::testing::ElementsAre(".claim", ".lock", "latest", "step-9"))
        << "killed at effect " << effect;
  }
  EXPECT_GT(effect, 30);
}

/// What a Save of step 2 over an earlier step 2 says if rank 0's `at`th `effect` fails.
std::string SaveWithFault(const std::string& dir, const char* effect, int64_t at, int error,
                          std::vector<std::string>& warnings) {
  std::string message;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives, &warnings));
    options.keep = 1;
    options.file_system = std::make_shared<Faulty>(at, error, effect);
    try {
      Saver saver(std::move(options));
      saver.Save(2, StateOf(0, 1, 2));
    } catch (const CheckpointError& failure) {
      message = failure.what();
    }
  });
  return message;
}

TEST(CheckpointFaultTest, FaultsOfTheFirstRankLeaveAGoodCheckpointAndSayWhatIsPublished) {
  for (const char* effect : {"rename", "sync_directory", "exchange", "remove"}) {
    for (int64_t at = 0; at < 20; ++at) {
      const TemporaryDirectory dir;
      SaveSteps(dir.path(), 1, {1, 2});
      std::vector<std::string> warnings;
      std::string message;
      try {
        message = SaveWithFault(dir.path(), effect, at, EIO, warnings);
      } catch (const CheckpointError&) {
        continue;  // the claim failed
      }
      EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2) << effect << at << message;
      const bool has_published = message.empty() || message.find("published") != std::string::npos;
      const json manifest = json::parse(std::ifstream(dir / "step-2/fsdprun.json"));
      EXPECT_EQ(manifest["sequence"], has_published ? 3 : 2) << effect << at << message;
    }
  }
}

TEST(CheckpointFaultTest, FileSystemWithoutSwapReplacesByTwoRenames) {
  for (const int error : {EINVAL, ENOSYS}) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1, 2});
    std::vector<std::string> warnings;
    EXPECT_EQ(SaveWithFault(dir.path(), "exchange", 0, error, warnings), "");
    EXPECT_THAT(ListDirectory(dir.path()),
                ::testing::ElementsAre(".claim", ".lock", "latest", "step-2"));
    EXPECT_EQ(json::parse(std::ifstream(dir / "step-2/fsdprun.json"))["sequence"], 3);
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  }
}

}  // namespace
}  // namespace fsdprun::worker::checkpoint
