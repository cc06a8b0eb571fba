#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CheckpointClaimTest, StaleGenerationNeitherClaimsNorPublishes) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    Saver stale(options);
    options.generation = 2;
    Saver current(options);
    EXPECT_THAT(MessageOf<CheckpointError>([&] { stale.Save(7, StateOf(0, 1, 7)); }),
                HasSubstr("is stale"));
    current.Save(8, StateOf(0, 1, 8));
    options.generation = 1;
    EXPECT_THAT(MessageOf<CheckpointError>([&] { Saver late(options); }),
                HasSubstr("older generation 1"));
    options.job_id = "another job";
    options.takes_over = true;
    EXPECT_FALSE(current.IsReplaced());
    Saver takes_over(options);
    EXPECT_TRUE(current.IsReplaced());
    EXPECT_FALSE(takes_over.IsReplaced());
    takes_over.Save(9, StateOf(0, 1, 9));
  });
  EXPECT_FALSE(DirectoryExists(dir / "step-7"));
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 9);
}

TEST(CheckpointClaimTest, SameCommandClaimsAgainAfterRestarts) {
  const TemporaryDirectory dir;
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives, &warnings));
    const auto save = [&](const char* job_id, uint64_t generation, int64_t step) {
      options.job_id = job_id;
      options.generation = generation;
      SaveOnce(options, step, StateOf(0, 1, step));
    };
    save("run-1", 1, 1);
    save("run-1", 2, 2);  // a restart
    save("run-2", 1, 3);  // the job ended; the same command again
    save("", 2, 4);       // another launcher
    save("", 1, 5);
  });
  EXPECT_THAT(warnings, ElementsAre());  // nobody has waited
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 5);
}

TEST(CheckpointClaimTest, AnotherLaunchIsRefusedWhileTheHolderLives) {
  const TemporaryDirectory dir;
  const std::string unfinished = dir / "step-2.tmp-1-0123456789abcdef";
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    Saver holder(options);
    holder.Save(1, StateOf(collectives->rank(), 2, 1));
    if (collectives->rank() == 0) {
      std::filesystem::create_directory(unfinished);
    }
    options.job_id = "another";
    EXPECT_THAT(MessageOf<ClaimHeldError>([&] { Saver second(options); }),
                AllOf(HasSubstr(dir.path() + ": job 'job', generation 1, process " +
                                std::to_string(getpid()) + " on host "),
                      HasSubstr("is using it"), HasSubstr("checkpoint.takeover")));
    EXPECT_TRUE(DirectoryExists(unfinished));
    holder.Save(3, StateOf(collectives->rank(), 2, 3));
  });
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 3);
}

/// Where a process cannot be heard of, such as another host's that was paused.
class WithoutPulse : public FileSystem {
 public:
  int SetPulse(const FileDescriptor&, Pulse) override { return EIO; }
};

TEST(CheckpointClaimTest, AnotherLaunchTakesOverFromAHolderThatShowsNoLife) {
  const TemporaryDirectory dir;
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives, &warnings));
    options.claim_timeout = std::chrono::milliseconds(50);
    options.file_system = std::make_shared<WithoutPulse>();
    Saver silent(options);
    options.job_id = "another";
    Saver successor(options);
    EXPECT_THAT(warnings, Contains(AllOf(HasSubstr("waiting for " + dir.path()),
                                         HasSubstr("job 'job', generation 1, process "))));
    EXPECT_THAT(MessageOf<ClaimHeldError>([&] { silent.Save(7, StateOf(0, 1, 7)); }),
                AllOf(HasSubstr("job 'another', generation 1, process "),
                      HasSubstr("has claimed it since"), HasSubstr("is stale")));
    successor.Save(8, StateOf(0, 1, 8));
  });
  EXPECT_FALSE(DirectoryExists(dir / "step-7"));
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 8);
}

/// Another launch takes the directory while the holder writes, and ends before the holder looks.
class TakenWhileWriting : public FileSystem {
 public:
  explicit TakenWhileWriting(std::string directory) : directory_(std::move(directory)) {}

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "create" && effect.path.find("__1_0") != std::string::npos) {
      ThreadRanks(1).Run([this](const std::shared_ptr<fsdp::Collectives>& collectives) {
        SaverOptions options = OptionsOf(directory_, GroupOf(collectives));
        options.job_id = "another";
        options.takes_over = true;
        Saver(options).Release();
      });
    }
    return 0;
  }

 private:
  const std::string directory_;
};

TEST(CheckpointClaimTest, SaveWhoseFilesWereRemovedByATakeoverNamesTheTakeover) {
  const TemporaryDirectory dir;
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    options.file_system = std::make_shared<TakenWhileWriting>(dir.path());
    Saver saver(options);
    EXPECT_THAT(
        MessageOf<ClaimHeldError>([&] { saver.Save(7, StateOf(collectives->rank(), 2, 7)); }),
        AllOf(HasSubstr("checkpoint of step 7 failed"), HasSubstr("job 'another', generation 1"),
              HasSubstr("has claimed it since")));
  });
  EXPECT_FALSE(DirectoryExists(dir / "step-7"));
}

/// A file system that ignores the time that it is told.
class PretendsPulse : public FileSystem {
 public:
  int SetPulse(const FileDescriptor&, Pulse) override { return 0; }
};

TEST(CheckpointClaimTest, ClaimThatCannotBeKeptAliveIsWarnedOf) {
  const std::shared_ptr<FileSystem> file_systems[] = {std::make_shared<WithoutPulse>(),
                                                      std::make_shared<PretendsPulse>()};
  for (const std::shared_ptr<FileSystem>& file_system : file_systems) {
    const TemporaryDirectory dir;
    std::vector<std::string> warnings;
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives, &warnings));
      options.file_system = file_system;
      Saver saver(options);
    });
    EXPECT_THAT(warnings,
                ElementsAre(AllOf(HasSubstr("the time of " + dir.path() + "/.claim"),
                                  HasSubstr("takes " + dir.path() + " over after 30 s"))));
  }
}

struct Start {
  std::string job_id;
  bool is_of_torchrun = false;
  bool has_parent = false;  // that lives on: this process
};

/// A fork copies the locks that other threads hold, and the sanitizers' runtime has some while a
/// thread ends, as those do that have renewed a claim.
void AwaitOtherThreads() {
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator());
  };
  for (int look = 0; look < 10'000 && count() > 1; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(count(), 1) << "a thread goes on";
}

/// A process that saves step 1 and is killed, as a child of one that has ended too, or of this one.
void SaveAndBeKilled(const std::string& directory, const Start& start) {
  const auto hold = [&] {
    if (start.is_of_torchrun) {
      setenv("TORCHELASTIC_RUN_ID", "none", /*overwrite=*/1);
    }
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      SaverOptions options = OptionsOf(directory, GroupOf(collectives));
      options.job_id = start.job_id;
      options.claim_timeout = std::chrono::milliseconds(50);
      Saver saver(options);
      saver.Save(1, StateOf(0, 1, 1));
      kill(getpid(), SIGKILL);
    });
  };
  ASSERT_NO_FATAL_FAILURE(AwaitOtherThreads());
  const pid_t child = fork();
  if (child == 0) {
    if (start.has_parent) {
      hold();
    }
    const pid_t holder = fork();
    if (holder == 0) {
      hold();
    }
    waitpid(holder, nullptr, 0);
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

/// Of another launch that saves step 2.
std::vector<std::string> WarningsOfTheNext(const std::string& directory) {
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(directory, GroupOf(collectives, &warnings));
    options.job_id = "another";
    options.claim_timeout = std::chrono::milliseconds(50);
    SaveOnce(options, 2, StateOf(0, 1, 2));
  });
  return warnings;
}

TEST(CheckpointClaimTest, KilledHolderOfThisMachineIsNotWaitedForUnlessItMayBeStartedAgain) {
  for (const std::string job_id : {"", "job"}) {
    for (const bool has_parent : {false, true}) {
      const TemporaryDirectory dir;
      SaveAndBeKilled(dir.path(), {job_id, true, has_parent});
      EXPECT_EQ(WarningsOfTheNext(dir.path()).size(), has_parent && !job_id.empty() ? 1 : 0)
          << job_id << has_parent;
      EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
    }
  }
}

TEST(CheckpointClaimTest, ParentThatIsNoLauncherIsNotTakenForOne) {
  for (const std::string job_id : {"", "job"}) {
    const TemporaryDirectory dir;
    SaveAndBeKilled(dir.path(), {job_id, false, true});
    EXPECT_EQ(LookAtClaim(dir.path())->claim.launcher_pid, 0);
    // Who else may start a job again that has an id cannot be told.
    EXPECT_EQ(WarningsOfTheNext(dir.path()).size(), job_id.empty() ? 0 : 1);
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  }
}

TEST(CheckpointClaimTest, FailureDoesNotReleaseTheClaim) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    { Saver fails(options); }
    EXPECT_NE(LookAtClaim(dir.path())->pulse, 0);
    options.generation = 2;
    Saver again(options);
    again.Release();
    EXPECT_EQ(LookAtClaim(dir.path())->pulse, 0);
  });
}

TEST(CheckpointClaimTest, CheckpointTellsItsRun) {
  const TemporaryDirectory dir;
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    EXPECT_EQ(CountPublications(dir.path(), options.group), 0);
    State state = StateOf(collectives->rank(), 2, 5);
    state.run = NewRun(options.group);
    EXPECT_EQ(state.run.size(), 16u);
    EXPECT_NE(state.run, NewRun(options.group));
    Saver saver(options);
    saver.Save(5, state);
    EXPECT_EQ(FindResume(dir.path(), "auto", options.group)->run, state.run);
    EXPECT_EQ(CountPublications(dir.path(), options.group), 1);
    saver.Save(5, state);
    EXPECT_EQ(CountPublications(dir.path(), options.group), 2);
  });
}

TEST(CheckpointClaimTest, CheckpointWhoseReplacementWasInterruptedIsFoundBeforeTheClaim) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  const std::string aside = dir / "step-2.old-0123456789abcdef";
  std::filesystem::rename(dir / "step-2", aside);
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  EXPECT_TRUE(DirectoryExists(aside));  // looking has changed nothing
  SaveSteps(dir.path(), 1, {});
  EXPECT_TRUE(DirectoryExists(dir / "step-2"));
  EXPECT_FALSE(DirectoryExists(aside));
}

TEST(CheckpointClaimTest, OwnCheckpointsAreThoseOfTheLaunch) {
  const TemporaryDirectory dir;
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives, &warnings);
    SaverOptions options = OptionsOf(dir.path(), group);
    const auto save = [&](const char* job_id, int64_t step) {
      options.job_id = job_id;
      SaveOnce(options, step, StateOf(0, 1, step));
    };
    const auto find = [&](const char* job_id) { return FindOfJob(dir.path(), {job_id}, group); };
    EXPECT_FALSE(FindOfJob(dir / "absent", {"run-1"}, group));
    save("run-1", 1);
    save("run-1", 2);
    save("run-2", 3);
    save("", 4);
    EXPECT_EQ(find("run-1")->step, 2);
    EXPECT_EQ(find("run-2")->step, 3);
    EXPECT_FALSE(find("run-3"));
    EXPECT_FALSE(find(""));
    std::filesystem::resize_file(dir / "step-2/__0_0.distcp", 100);
    EXPECT_EQ(find("run-1")->step, 1);
    EXPECT_EQ(warnings.size(), 1u);
    std::filesystem::resize_file(dir / "step-3/__0_0.distcp", 100);
    EXPECT_THAT(MessageOf<CheckpointError>([&] { find("run-2"); }),
                AllOf(HasSubstr("this launch's own checkpoints"), HasSubstr("step-3")));
  });
}

TEST(CheckpointClaimTest, RestartDoesNotOverlookACheckpointThatMayBeItsOwn) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});  // of the launch "job"
  FlipBit(dir / "step-2/fsdprun.json", 800);
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives);
    EXPECT_EQ(FindOfJob(dir.path(), {"job", true}, group)->step, 1);
    EXPECT_FALSE(FindOfJob(dir.path(), {"another", false}, group));
    EXPECT_THAT(MessageOf<CheckpointError>([&] {
                  FindOfJob(dir.path(), {"another", true}, group);
                }),
                AllOf(HasSubstr("step-2 is of this launch"), HasSubstr("cannot be read")));
  });
}

TEST(CheckpointClaimTest, CheckpointThatCannotBeReadForNowIsToldFromADamagedOne) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const auto error_of = [&](const std::string& path) {
      try {
        FindAt(path, GroupOf(collectives));
      } catch (const CheckpointError& error) {
        return error.error_number();
      }
      return -1;
    };
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlimit none = limit;
    none.rlim_cur = 0;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    EXPECT_EQ(error_of(dir / "step-1"), EMFILE);
    EXPECT_EQ(error_of(dir.path()), EMFILE);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(error_of(dir / "absent"), 0);
    std::filesystem::resize_file(dir / "step-1/__0_0.distcp", 100);
    EXPECT_EQ(error_of(dir / "step-1"), 0);
  });
}

}  // namespace
}  // namespace fsdprun::checkpoint
