#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::worker::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

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
    Saver takes_over(options);
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
      Saver(options).Save(step, StateOf(0, 1, step));
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
    EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("waiting for " + dir.path()),
                                            HasSubstr("job 'job', generation 1, process "))));
    EXPECT_THAT(MessageOf<CheckpointError>([&] { silent.Save(7, StateOf(0, 1, 7)); }),
                AllOf(HasSubstr("job 'another', generation 1, process "),
                      HasSubstr("has claimed it since"), HasSubstr("is stale")));
    successor.Save(8, StateOf(0, 1, 8));
  });
  EXPECT_FALSE(DirectoryExists(dir / "step-7"));
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 8);
}

TEST(CheckpointClaimTest, KilledHolderOfThisMachineIsNotWaitedFor) {
  const TemporaryDirectory dir;
  const pid_t child = fork();
  if (child == 0) {
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
      saver.Save(1, StateOf(0, 1, 1));
      kill(getpid(), SIGKILL);
    });
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives, &warnings));
    options.job_id = "another";
    Saver(options).Save(2, StateOf(0, 1, 2));
  });
  EXPECT_THAT(warnings, ElementsAre());
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
}

TEST(CheckpointClaimTest, RetentionCountsAndRemovesOnlyTheRunsOwn) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    const auto save = [&](const char* job_id, const char* run, int64_t step) {
      options.job_id = job_id;
      State state = StateOf(0, 1, step);
      state.run = run;
      Saver(options).Save(step, state);
    };
    options.keep = 2;
    save("launch-1", "first", 1);
    save("launch-2", "second", 2);
    save("", "", 3);                // of a run that is not known
    save("", "", 4);                //
    save("", "", 5);                //
    save("launch-3", "first", 6);   // a launch that goes on with the first run
    save("launch-4", "second", 7);  //
    save("launch-5", "first", 8);   //
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-2", "step-3", "step-4", "step-5",
                          "step-6", "step-7", "step-8"));
}

TEST(CheckpointClaimTest, CheckpointOfAnotherRunIsNotReplaced) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
    State state = StateOf(0, 1, 1);
    state.run = "another";
    EXPECT_THAT(
        MessageOf<CheckpointError>([&] { saver.Save(1, state); }),
        AllOf(HasSubstr("refused to replace " + (dir / "step-1")), HasSubstr("another run")));
    EXPECT_EQ(FindResume(dir.path(), "auto", GroupOf(collectives))->run, "job");
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
      Saver(options).Save(step, StateOf(0, 1, step));
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

TEST(CheckpointClaimTest, CheckpointsOfOthersAreNeitherRemovedNorCounted) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  for (const char* name : {"step-1", "step-2"}) {
    std::filesystem::remove(dir / name + "/fsdprun.json");
  }
  SaveSteps(dir.path(), 1, {3, 4, 5}, 2);
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-1", "step-2", "step-4", "step-5"));
}

/// step-2 as another program may have made it.
struct OthersStep {
  std::string what;                // the error calls it
  std::vector<std::string> files;  // are all in it
};

const OthersStep kOthersSteps[] = {
    {"a checkpoint", {".metadata", "__0_0.distcp"}},
    {"a directory", {"model.safetensors"}},
    {"a directory", {}},
};

void Make(const OthersStep& others, const std::string& path) {
  std::filesystem::create_directories(path);
  for (const std::string& file : others.files) {
    std::ofstream(path + "/" + file) << "precious";
  }
}

void ExpectIntact(const OthersStep& others, const std::string& path) {
  EXPECT_THAT(ListDirectory(path), ElementsAreArray(others.files));
  for (const std::string& file : others.files) {
    EXPECT_EQ(ReadWholeFile(path + "/" + file, 100), "precious") << file;
  }
}

std::string RefusalOf(const OthersStep& others, const std::string& path) {
  return "refused to replace " + path + ": it is " + others.what +
         " that another program made (it has no fsdprun.json); move it away or choose another "
         "checkpoint.dir";
}

/// What remains when a save of step 2 was refused.
void ExpectOnlyTheStepOfOthers(const OthersStep& others, const TemporaryDirectory& dir) {
  ExpectIntact(others, dir / "step-2");
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-1", "step-2"));
  EXPECT_EQ(ReadWholeFile(dir / "latest", 100), "step-1\n");
}

TEST(CheckpointClaimTest, DirectoryOfOthersIsNotReplaced) {
  for (const OthersStep& others : kOthersSteps) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 2, {1});
    Make(others, dir / "step-2");
    ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
      EXPECT_EQ(
          MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(collectives->rank(), 2, 2)); }),
          "checkpoint of step 2 failed: rank 0: " + RefusalOf(others, dir / "step-2"));
    });
    ExpectOnlyTheStepOfOthers(others, dir);
    SaveSteps(dir.path(), 1, {3}, 1);
    ExpectIntact(others, dir / "step-2");
  }
}

/// Another program makes a directory while the files of a save are being written.
class MakesAtSync : public FileSystem {
 public:
  MakesAtSync(const OthersStep& others, std::string path)
      : others_(others), path_(std::move(path)) {}

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "sync" && effect.path.ends_with(".distcp")) {
      Make(others_, path_);
    }
    return 0;
  }

 private:
  const OthersStep& others_;
  std::string path_;
};

TEST(CheckpointClaimTest, DirectoryThatOthersMakeDuringTheSaveIsNotReplaced) {
  for (const OthersStep& others : kOthersSteps) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1});
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
      options.file_system = std::make_shared<MakesAtSync>(others, dir / "step-2");
      Saver saver(options);
      EXPECT_THAT(MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(0, 1, 2)); }),
                  HasSubstr(RefusalOf(others, dir / "step-2")));
    });
    ExpectOnlyTheStepOfOthers(others, dir);
  }
}

TEST(CheckpointClaimTest, CheckpointOfASaverIsReplacedWhateverItsLaunchAndState) {
  for (const char* damaged : {"", "fsdprun.json", ".metadata", "__0_0.distcp"}) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1, 2});
    if (damaged[0] != '\0') {
      FlipBit(dir / "step-2/" + damaged, 800);
    }
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
      options.job_id = "another launch";
      State state = StateOf(0, 1, 2);
      state.run = "job";
      Saver(options).Save(2, state);
      EXPECT_EQ(FindOfJob(dir.path(), {"another launch"}, options.group)->step, 2) << damaged;
    });
    EXPECT_THAT(ListDirectory(dir.path()),
                ElementsAre(".claim", ".lock", "latest", "step-1", "step-2"));
  }
}

TEST(CheckpointClaimTest, OnlyNamesThatASaverGivesAreLeftovers) {
  const TemporaryDirectory dir;
  const std::vector<std::string> users = {"step-1.delete-me",
                                          "step-1.old-0123456789ABCDEF",
                                          "step-1.old-0123456789abcde",
                                          "step-1.old-backup",
                                          "step-1.tmp--0123456789abcdef",
                                          "step-1.tmp-0123456789abcdef",
                                          "step-1.tmp-1-0123456789abcdef0",
                                          "step-1.tmp-of-mine",
                                          "step-x.old-0123456789abcdef"};
  const std::vector<std::string> leftovers = {"step-1.delete-0123456789abcdef",
                                              "step-1.old-0123456789abcdef",
                                              "step-1.tmp-12-0123456789abcdef"};
  for (const std::vector<std::string>& names : {users, leftovers}) {
    for (const std::string& name : names) {
      Make(kOthersSteps[0], dir / name);
    }
  }
  std::filesystem::create_directory(dir / "step-1");  // so that nothing is to be restored
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
  });
  std::vector<std::string> expected = {".claim", ".lock", "step-1"};
  expected.insert(expected.end(), users.begin(), users.end());
  EXPECT_THAT(ListDirectory(dir.path()), UnorderedElementsAreArray(expected));
}

TEST(CheckpointClaimTest, DirectoriesInTheWayAreToldByTheLowestStep) {
  const TemporaryDirectory dir;
  CheckReplaceable(dir / "absent", "job", [](int64_t) { return true; });
  SaveSteps(dir.path(), 1, {1, 2});
  for (const char* name : {"step-4", "step-10", "step-12", "notes"}) {
    Make(kOthersSteps[0], dir / name);
  }
  const auto refusal = [&](int64_t first) {
    return MessageOf<CheckpointError>([&] {
      CheckReplaceable(dir.path() + "/", "job", [first](int64_t step) { return step >= first; });
    });
  };
  EXPECT_EQ(refusal(0), RefusalOf(kOthersSteps[0], dir / "step-4"));
  EXPECT_EQ(refusal(5), RefusalOf(kOthersSteps[0], dir / "step-10"));
  CheckReplaceable(dir.path(), "job", [](int64_t step) { return step < 4 || step == 5; });
  EXPECT_THAT(MessageOf<CheckpointError>([&] {
                CheckReplaceable(dir.path(), "another", [](int64_t step) { return step < 4; });
              }),
              AllOf(HasSubstr("refused to replace " + (dir / "step-1")), HasSubstr("another run")));
}

}  // namespace
}  // namespace fsdprun::worker::checkpoint
