#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/commit.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A file system that fails with `error`, or dies, at the effect number `at`.
class Faulty : public FileSystem {
 public:
  Faulty(int64_t at, int error, std::string effect = {}, std::string below = {})
      : at_(at), error_(error), effect_(std::move(effect)), below_(std::move(below)) {}

  bool was_reached() const { return was_reached_; }
  /// As a file system that cannot swap; the swaps are not counted then.
  void RefuseSwaps() { has_swap_ = false; }

 protected:
  int Intercept(const Effect& effect) override {
    if (!has_swap_ && effect.name == "exchange") {
      return ENOSYS;
    }
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
  bool has_swap_ = true;
  int64_t at_;
  int error_;
  std::string effect_;
  std::string below_;  // of effects on these paths only
};

int64_t SequenceOf(const std::string& checkpoint) {
  return json::parse(std::ifstream(checkpoint + "/fsdprun.json"))["sequence"];
}

/// A Save of step 2 by two ranks, of which `faulty_rank` meets the fault; then another try of the
/// same Savers without one. Returns the error, which must be the same on both; empty: none.
std::string MessageOfTwoRanks(const std::string& dir, int64_t faulty_rank,
                              const std::shared_ptr<Faulty>& faulty) {
  std::vector<std::string> messages(2);
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const int64_t rank = collectives->rank();
    SaverOptions options = OptionsOf(dir, GroupOf(collectives));
    options.file_system = rank == faulty_rank ? faulty : std::make_shared<FileSystem>();
    Saver saver(std::move(options));
    std::string& message = messages[static_cast<size_t>(rank)];
    try {
      saver.Save(2, StateOf(rank, 2, 2));
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    collectives->barrier();
    if (rank == 0 && !message.empty()) {
      EXPECT_THAT(ListDirectory(dir), ElementsAre(".claim", ".lock", "latest", "step-1"));
    }
    collectives->barrier();
    if (!message.empty()) {
      saver.Save(2, StateOf(rank, 2, 2));
    }
  });
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

/// Effects of a Save that each rank has by itself.
struct OwnEffect {
  std::string name;
  int64_t rank;
  int64_t first = 0;  // of its number; before it are those of the claim
};

TEST(CheckpointFaultTest, FaultOfAnyRankIsThrownOnAllAndTheNextTrySucceeds) {
  const std::vector<OwnEffect> effects = {
      {"create", 1},  {"reserve", 1},           {"write", 1}, {"sync", 1}, {"sync_directory", 1},
      {"reserve", 0}, {"make_directory", 0, 1},
  };
  for (const auto& [name, rank, first] : effects) {
    int64_t at = first;
    for (bool was_reached = true; was_reached; ++at) {
      SCOPED_TRACE(name + " " + std::to_string(at) + " of rank " + std::to_string(rank));
      const TemporaryDirectory dir(MemoryDirectory());
      SaveSteps(dir.path(), 2, {1});
      const auto faulty = std::make_shared<Faulty>(at, ENOSPC, name, dir.path());
      const std::string message = MessageOfTwoRanks(dir.path(), rank, faulty);
      was_reached = faulty->was_reached();
      if (was_reached) {
        EXPECT_THAT(message, StartsWith("checkpoint of step 2 failed: "));
        EXPECT_THAT(message, AllOf(HasSubstr("the disk is full"), HasSubstr("bytes are free")));
      } else {
        EXPECT_EQ(message, "");
      }
      EXPECT_EQ(LoadAndCheck(dir.path(), 2), 2);
      EXPECT_EQ(SequenceOf(dir / "step-2"), 2);
    }
    EXPECT_GT(at - first, 1) << "no " << name << " of rank " << rank;
  }
}

/// After its fault nothing can be said of the attempt.
class FaultyThenStale : public Faulty {
 public:
  using Faulty::Faulty;
  void EndFault() { fault_.reset(); }

 protected:
  int Intercept(const Effect& effect) override {
    const int error = Faulty::Intercept(effect);
    if (error != 0) {
      fault_.emplace(PathFault::kLook, ".tmp-", ESTALE);
    }
    return error;
  }

 private:
  std::optional<PathFault> fault_;
};

TEST(CheckpointFaultTest, AttemptThatCannotBeLookedAtIsLeftAndAllRanksThrowTheSaveError) {
  const TemporaryDirectory dir(MemoryDirectory());
  const auto stale = std::make_shared<FaultyThenStale>(0, ENOSPC, "reserve", dir / "step-2.tmp-");
  std::vector<std::string> messages(2);
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const int64_t rank = collectives->rank();
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    if (rank == 1) {
      options.file_system = stale;
    }
    Saver saver(std::move(options));
    messages[static_cast<size_t>(rank)] =
        MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(rank, 2, 2)); });
    collectives->barrier();
    if (rank == 0) {
      EXPECT_THAT(ListDirectory(dir.path()), Contains(StartsWith("step-2.tmp-")));
      stale->EndFault();
    }
    collectives->barrier();
    saver.Save(2, StateOf(rank, 2, 2));
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_THAT(messages[0],
              AllOf(StartsWith("checkpoint of step 2 failed: "), HasSubstr("the disk is full")));
  EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-2"));
}

/// In a process of its own, which dies at the effect number `at`. Whether it did.
bool SaveAndDie(const std::string& dir, int64_t at, bool has_swap) {
  const pid_t child = fork();
  if (child == 0) {
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      SaverOptions options = OptionsOf(dir, GroupOf(collectives));
      const auto faulty = std::make_shared<Faulty>(at, 0);
      if (!has_swap) {
        faulty->RefuseSwaps();
      }
      options.file_system = faulty;
      options.keep = 1;
      Saver saver(std::move(options));
      saver.Save(2, StateOf(0, 1, 2));  // replaces
      saver.Save(3, StateOf(0, 1, 3));
    });
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  const bool has_died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(has_died || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  return has_died;
}

void ExpectKillsLoseNothing(bool has_swap) {
  int64_t at = 0;
  int64_t newest = 2;  // number of the newest checkpoint when killed one effect earlier
  std::set<int64_t> seen;
  for (bool has_died = true; has_died && !::testing::Test::HasFailure(); ++at) {
    SCOPED_TRACE("killed at effect " + std::to_string(at));
    const TemporaryDirectory dir(MemoryDirectory());
    SaveSteps(dir.path(), 1, {1, 2});
    has_died = SaveAndDie(dir.path(), at, has_swap);
    if (!has_swap) {
      SaveSteps(dir.path(), 1, {});  // a Saver puts back what was moved aside
    }
    const int64_t step = LoadAndCheck(dir.path(), 1);
    const int64_t sequence = SequenceOf(dir / StepName(step));
    EXPECT_GE(sequence, newest);
    newest = sequence;
    seen.insert(sequence);
    SaveSteps(dir.path(), 2, {9}, 1);
    EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-9"));
  }
  EXPECT_EQ(newest, 4);
  EXPECT_THAT(seen, ElementsAre(2, 3, 4));
  EXPECT_GT(at, 30);
}

TEST(CheckpointFaultTest, KillAtAnyEffectLosesNoPublishedCheckpoint) {
  ExpectKillsLoseNothing(true);
}

TEST(CheckpointFaultTest, KillAtAnyEffectWithoutSwapLosesNoPublishedCheckpoint) {
  ExpectKillsLoseNothing(false);
}

/// What came of a Save of step 2 over an earlier step 2 with a fault of rank 0's file system.
struct FaultySave {
  bool was_reached = false;  // the fault has happened
  std::string message;       // of the error; empty: none
  std::vector<std::string> warnings;
};

FaultySave SaveWithFault(const std::string& dir, const std::shared_ptr<Faulty>& faulty) {
  FaultySave save;
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

/// How many faults of one kind of effect had which end.
struct FaultCount {
  std::string effect;
  int prevented = 0;  // nothing was published
  int tolerated = 0;  // it was, and the error or a warning says what is missing
};

/// Checks what the fault has left of a Save over step 2 and what was said. Whether it is published.
bool CheckFault(const TemporaryDirectory& dir, const FaultySave& save) {
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  const bool is_published = SequenceOf(dir / "step-2") == 3;
  if (!save.was_reached) {
    EXPECT_EQ(save.message, "");
    EXPECT_THAT(save.warnings, ElementsAre());
    EXPECT_TRUE(is_published);
  } else if (save.message.empty()) {
    EXPECT_TRUE(is_published);
    EXPECT_THAT(save.warnings, Contains(HasSubstr("Input/output error")));
  } else {
    EXPECT_THAT(save.message, HasSubstr("Input/output error"));
    EXPECT_EQ(is_published, save.message.find("published") != std::string::npos);
  }
  if (!is_published) {
    EXPECT_EQ(SequenceOf(dir / "step-2"), 2);
    EXPECT_THAT(ListDirectory(dir.path()), Not(Contains(StartsWith("step-2."))));
  }
  SaveSteps(dir.path(), 1, {9}, 1);
  EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-9"));
  return is_published;
}

void ExpectFaults(const FaultCount& expected, bool has_swap) {
  FaultCount count{expected.effect};
  for (bool was_reached = true; was_reached;) {
    const TemporaryDirectory dir(MemoryDirectory());
    SaveSteps(dir.path(), 1, {1, 2});
    const int at = count.prevented + count.tolerated;
    const auto faulty = std::make_shared<Faulty>(at, EIO, expected.effect, dir.path());
    if (!has_swap) {
      faulty->RefuseSwaps();
    }
    const FaultySave save = SaveWithFault(dir.path(), faulty);
    SCOPED_TRACE(expected.effect + " " + std::to_string(at) + ": " + save.message);
    was_reached = save.was_reached;
    const bool is_published = CheckFault(dir, save);
    if (was_reached) {
      ++(is_published ? count.tolerated : count.prevented);
    }
  }
  EXPECT_EQ(count.prevented, expected.prevented) << expected.effect;
  EXPECT_EQ(count.tolerated, expected.tolerated) << expected.effect;
}

TEST(CheckpointFaultTest, FaultsOfTheFirstRankLeaveAGoodCheckpointAndSayWhatIsPublished) {
  const std::vector<FaultCount> expectations = {
      {"make_directory", 2, 0},  // of all, of the attempt
      {"create", 6, 2},          // lock, .claim; file, lock, fsdprun.json, .metadata | latest, lock
      {"reserve", 1, 0},         //
      {"write", 20, 1},          // .claim, 17 of the file, fsdprun.json, .metadata | latest
      {"sync", 4, 1},            // .claim, file, fsdprun.json, .metadata | latest
      {"sync_directory", 3, 3},  // claim, file, .metadata | publication, latest, old ones
      {"rename", 1, 2},          // .claim | latest, an old one
      {"exchange", 1, 0},        //
      {"remove", 0, 3},          // | what was replaced (two names), an old one
  };
  for (const FaultCount& expected : expectations) {
    ExpectFaults(expected, true);
  }
}

TEST(CheckpointFaultTest, FaultsOfAReplacementByTwoRenamesLeaveAGoodCheckpoint) {
  const std::vector<FaultCount> expectations = {
      {"sync_directory", 3, 3},  // claim, file, .metadata | publication, latest, old ones
      {"rename", 3, 2},          // .claim, aside, into place | latest, an old one
      {"remove", 0, 3},          // | the attempt (gone), what was replaced, an old one
  };
  for (const FaultCount& expected : expectations) {
    ExpectFaults(expected, false);
  }
}

TEST(CheckpointFaultTest, LeftoversThatFillTheDiskAreRemovedAtTheNextStart) {
  for (const int error : {ENOSPC, EDQUOT}) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1});
    std::filesystem::create_directory(dir / "step-2.tmp-1-0123456789abcdef");
    std::ofstream(dir / "step-2.tmp-1-0123456789abcdef/__0_0.distcp") << "unfinished";
    const FaultySave save =
        SaveWithFault(dir.path(), std::make_shared<Faulty>(0, error, "write", dir.path()));
    EXPECT_TRUE(save.was_reached);
    EXPECT_EQ(save.message, "");
    EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-2"));
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  }
}

TEST(CheckpointFaultTest,
     AfterAPublicationThatCannotBeSyncedTheNextSaveSyncsBeforeItRemovesAnything) {
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
    ASSERT_TRUE(names.back().starts_with("step-2.tmp-")) << names.back();
    EXPECT_EQ(SequenceOf(dir / "step-2"), 2);
    EXPECT_EQ(SequenceOf(dir / names.back()), 1);
    saver.Save(3, StateOf(0, 1, 3));
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-2", "step-3"));
}

TEST(CheckpointFaultTest, ErrorsThatOnlyAnotherConfigurationEndsDoNotPass) {
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
    const FaultySave save =
        SaveWithFault(dir.path(), std::make_shared<Faulty>(0, error, "exchange", dir.path()));
    EXPECT_TRUE(save.was_reached);
    EXPECT_EQ(save.message, "");
    EXPECT_THAT(save.warnings, ElementsAre());
    EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-2"));
    EXPECT_EQ(SequenceOf(dir / "step-2"), 3);
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  }
}

}  // namespace
}  // namespace fsdprun::checkpoint
