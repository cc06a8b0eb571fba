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

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A file system that fails with `error`, or dies, at the effect number `at`.
class Faulty : public FileSystem {
 public:
  Faulty(int64_t at, int error, std::string effect = {}, std::string below = {})
      : at_(at), error_(error), effect_(std::move(effect)), below_(std::move(below)) {}

  bool was_reached() const { return was_reached_; }

 protected:
  int Intercept(const Effect& effect) override {
    const bool is_counted =
        (effect_.empty() || effect.name == effect_) && effect.path.starts_with(below_);
    if (!is_counted || count_++ != at_) {
      return 0;
    }
    was_reached_ = true;
    if (error_ == 0) {
      kill(getpid(), SIGKILL);
    }
    return error_;
  }

 private:
  std::atomic<int64_t> count_{0};
  std::atomic<bool> was_reached_{false};
  int64_t at_;
  int error_;
  std::string effect_;
  std::string below_;  // of effects on these paths only
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
    const TemporaryDirectory dir(MemoryDirectory());
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
    has_died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    ASSERT_TRUE(has_died || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
    EXPECT_GE(LoadAndCheck(dir.path(), 1), has_died ? 2 : 3) << "killed at effect " << effect;
    SaveSteps(dir.path(), 2, {9}, 1);
    EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-9"))
        << "killed at effect " << effect;
  }
  EXPECT_GT(effect, 30);
}

/// What came of a Save of step 2 over an earlier step 2 with a fault of rank 0's file system.
struct FaultySave {
  bool was_reached = false;  // the fault has happened
  std::string message;       // of the error; empty: none
  std::vector<std::string> warnings;
};

FaultySave SaveWithFault(const std::string& dir, const std::string& effect, int64_t at, int error) {
  FaultySave save;
  const auto faulty = std::make_shared<Faulty>(at, error, effect, dir);
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives, &save.warnings));
    options.keep = 1;
    options.file_system = faulty;
    try {
      Saver saver(std::move(options));
      saver.Save(2, StateOf(0, 1, 2));
    } catch (const CheckpointError& failure) {
      save.message = failure.what();
    }
  });
  save.was_reached = faulty->was_reached();
  return save;
}

int64_t SequenceOf(const std::string& checkpoint) {
  return json::parse(std::ifstream(checkpoint + "/fsdprun.json"))["sequence"];
}

/// How many faults of one kind of effect had which end.
struct FaultCount {
  std::string effect;
  int prevented = 0;  // nothing was published
  int tolerated = 0;  // it was, and the error or a warning says what is missing
};

TEST(CheckpointFaultTest, FaultsOfTheFirstRankLeaveAGoodCheckpointAndSayWhatIsPublished) {
  const std::vector<FaultCount> expectations = {
      {"make_directory", 2, 0},  // of all, of the attempt
      {"create", 6, 2},          // lock, .claim; file, lock, fsdprun.json, .metadata | latest, lock
      {"reserve", 1, 0},         //
      {"sync", 4, 1},            // .claim, file, fsdprun.json, .metadata | latest
      {"sync_directory", 3, 3},  // claim, file, .metadata | publication, latest, old ones
      {"rename", 1, 2},          // .claim | latest, an old one
      {"exchange", 1, 0},        //
      {"remove", 0, 3},          // | what was replaced (two names), an old one
  };
  for (const FaultCount& expected : expectations) {
    FaultCount count{expected.effect};
    for (bool was_reached = true; was_reached;) {
      const TemporaryDirectory dir(MemoryDirectory());
      SaveSteps(dir.path(), 1, {1, 2});
      const int at = count.prevented + count.tolerated;
      const FaultySave save = SaveWithFault(dir.path(), expected.effect, at, EIO);
      const std::string where = expected.effect + " " + std::to_string(at) + ": " + save.message;
      was_reached = save.was_reached;
      EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2) << where;
      const bool is_published = SequenceOf(dir / "step-2") == 3;
      if (!was_reached) {
        EXPECT_EQ(save.message, "") << where;
        EXPECT_THAT(save.warnings, ElementsAre()) << where;
        EXPECT_TRUE(is_published) << where;
        continue;
      }
      EXPECT_THAT(::testing::PrintToString(save.warnings) + save.message,
                  HasSubstr("Input/output error"))
          << where;
      EXPECT_EQ(is_published,
                save.message.empty() || save.message.find("published") != std::string::npos)
          << where;
      ++(is_published ? count.tolerated : count.prevented);
    }
    EXPECT_EQ(count.prevented, expected.prevented) << expected.effect;
    EXPECT_EQ(count.tolerated, expected.tolerated) << expected.effect;
  }
}

TEST(CheckpointFaultTest, DiskFullOfWhatAKilledRunLeftIsClearedAtTheNextStart) {
  for (const int error : {ENOSPC, EDQUOT}) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1});
    std::filesystem::create_directory(dir / "step-2.tmp-1-dead");
    std::ofstream(dir / "step-2.tmp-1-dead/__0_0.distcp") << "unfinished";
    const FaultySave save = SaveWithFault(dir.path(), "write", 0, error);
    EXPECT_TRUE(save.was_reached);
    EXPECT_EQ(save.message, "");
    EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-2"));
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  }
}

TEST(CheckpointFaultTest, PublicationWhoseSyncFailsOnceIsNotTrustedToALaterSync) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {2});
  // Of the claim, the file, .metadata; then of the publication.
  const auto faulty = std::make_shared<Faulty>(3, EIO, "sync_directory", dir.path());
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    options.file_system = faulty;
    Saver saver(options);
    EXPECT_THAT(MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(0, 1, 2)); }),
                HasSubstr("a power failure may undo it"));
    const std::vector<std::string> names = ListDirectory(dir.path());
    EXPECT_TRUE(names.back().starts_with("step-2.tmp-")) << names.back();
    EXPECT_THAT(MessageOf<CheckpointError>([&] { saver.Save(3, StateOf(0, 1, 3)); }),
                HasSubstr("start the job anew"));
    EXPECT_EQ(ListDirectory(dir.path()), names);
    Saver(options).Save(3, StateOf(0, 1, 3));
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-2", "step-3"));
}

TEST(CheckpointFaultTest, WhatAnotherConfigurationMustMendDoesNotPass) {
  for (const int error : {ENOSPC, EDQUOT, EIO, ESTALE, EMFILE, ETIMEDOUT}) {
    EXPECT_TRUE(MayPass(error)) << error;
  }
  for (const int error : {0, EACCES, EPERM, EROFS, ENOTDIR, EEXIST, ENAMETOOLONG, ENOENT}) {
    EXPECT_FALSE(MayPass(error)) << error;
  }
}

TEST(CheckpointFaultTest, FileSystemWithoutSwapReplacesByTwoRenames) {
  for (const int error : {EINVAL, ENOSYS}) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1, 2});
    const FaultySave save = SaveWithFault(dir.path(), "exchange", 0, error);
    EXPECT_TRUE(save.was_reached);
    EXPECT_EQ(save.message, "");
    EXPECT_THAT(save.warnings, ElementsAre());
    EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-2"));
    EXPECT_EQ(SequenceOf(dir / "step-2"), 3);
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  }
}

}  // namespace
}  // namespace fsdprun::worker::checkpoint
