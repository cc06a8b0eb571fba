// Which checkpoints and directories a Saver may replace and remove.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/step_list.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

TEST(CheckpointRetentionTest, RetentionCountsAndRemovesOnlyTheRunsOwn) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    const auto save = [&](const char* job_id, const char* run, int64_t step) {
      options.job_id = job_id;
      State state = StateOf(0, 1, step);
      state.run = run;
      SaveOnce(options, step, state);
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

TEST(CheckpointRetentionTest, EveryNthStepStaysBesideTheNewest) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    options.keep = 2;
    options.keep_every = 4;
    Saver saver(std::move(options));
    for (const int64_t step : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
      saver.Save(step, StateOf(0, 1, step));
    }
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-10", "step-11", "step-4", "step-8"));
}

TEST(CheckpointRetentionTest, DamagedOneIsNoneOfThoseThatAreKept) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {100, 200});
  FlipBit(dir / "step-200/__0_0.distcp", 8 * 2000);
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Group group = GroupOf(collectives);
    group.steps = std::make_shared<StepList>();
    State state = StateOf(0, 1, -1);
    const auto loaded = LoadChosen(
        group,
        [&](const Unloadable& unloadable) {
          return FindResume(dir.path(), "auto", group, Verify::kStructure, unloadable);
        },
        [&](const Candidate& candidate) { Load(candidate, state, group); });
    EXPECT_EQ(loaded->step, 100);
    SaverOptions options = OptionsOf(dir.path(), group);
    options.keep = 2;
    Saver saver(std::move(options));
    saver.Save(150, StateOf(0, 1, 150));
    EXPECT_THAT(ListDirectory(dir.path()),
                ElementsAre(".claim", ".lock", "latest", "step-100", "step-150", "step-200"));
    saver.Save(160, StateOf(0, 1, 160));
    EXPECT_THAT(ListDirectory(dir.path()),
                ElementsAre(".claim", ".lock", "latest", "step-150", "step-160"));
    saver.Save(200, StateOf(0, 1, 200));  // is another one
    saver.Save(210, StateOf(0, 1, 210));
    EXPECT_THAT(ListDirectory(dir.path()),
                ElementsAre(".claim", ".lock", "latest", "step-200", "step-210"));
  });
}

TEST(CheckpointRetentionTest, OneThatTheDiskCannotReadIsNoneOfThoseThatAreKept) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {100, 200});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    options.keep = 2;
    Saver saver(std::move(options));
    const PathFault fault(PathFault::kLook, "step-200/.metadata", EIO);
    saver.Save(300, StateOf(0, 1, 300));
    EXPECT_THAT(ListDirectory(dir.path()),
                ElementsAre(".claim", ".lock", "latest", "step-100", "step-200", "step-300"));
    saver.Save(400, StateOf(0, 1, 400));
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-300", "step-400"));
}

TEST(CheckpointRetentionTest, SaverReadsAnEarlierCheckpointsManifestOnce) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    options.keep = 2;
    Saver saver(std::move(options));
    saver.Save(1, StateOf(0, 1, 1));
    saver.Save(2, StateOf(0, 1, 2));
    // If it were read again, it could not be told whose step-1 is, and it would stay.
    const std::string manifest = dir / "step-1/fsdprun.json";
    const auto modified = std::filesystem::last_write_time(manifest);
    FlipBit(manifest, 8 * 100);
    std::filesystem::last_write_time(manifest, modified);
    saver.Save(3, StateOf(0, 1, 3));
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              ElementsAre(".claim", ".lock", "latest", "step-2", "step-3"));
}

TEST(CheckpointRetentionTest, CheckpointOfAnotherRunIsNotReplaced) {
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

TEST(CheckpointRetentionTest, CheckpointsOfOthersAreNeitherRemovedNorCounted) {
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

TEST(CheckpointRetentionTest, DirectoryOfOthersIsNotReplaced) {
  for (const OthersStep& others : kOthersSteps) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 2, {1});
    Make(others, dir / "step-2");
    ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
      EXPECT_EQ(
          MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(collectives->rank(), 2, 2)); }),
          "checkpoint of step 2 failed: " + RefusalOf(others, dir / "step-2"));
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

TEST(CheckpointRetentionTest, DirectoryThatOthersMakeDuringTheSaveIsNotReplaced) {
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

TEST(CheckpointRetentionTest, CheckpointOfASaverIsReplacedWhateverItsLaunchAndState) {
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
      SaveOnce(options, 2, state);
      EXPECT_EQ(FindOfJob(dir.path(), {"another launch"}, options.group)->step, 2) << damaged;
    });
    EXPECT_THAT(ListDirectory(dir.path()),
                ElementsAre(".claim", ".lock", "latest", "step-1", "step-2"));
  }
}

TEST(CheckpointRetentionTest, OnlyNamesThatASaverGivesAreLeftovers) {
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

TEST(CheckpointRetentionTest, ProbesOfStartsThatAreLongGoneAreLeftovers) {
  const TemporaryDirectory dir;
  const auto write = [&](const std::string& name, std::chrono::seconds age) {
    std::ofstream(dir / name) << "probe";
    std::filesystem::last_write_time(dir / name,
                                     std::filesystem::file_time_type::clock::now() - age);
    return name;
  };
  const auto long_ago = 2 * kProbeAgeMax;
  write(ProbeName(), long_ago);
  write(ProbeName(), kProbeAgeMax + std::chrono::minutes(1));
  const std::string of_another_start = write(ProbeName(), kProbeAgeMax / 2);
  const std::string users = write(".probe-of-mine", long_ago);
  const std::string users_too = write(".probe-0123456789ABCDEF", long_ago);
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              UnorderedElementsAre(".claim", ".lock", of_another_start, users, users_too));
}

TEST(CheckpointRetentionTest, DirectoriesInTheWayAreToldByTheLowestStep) {
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
}  // namespace fsdprun::checkpoint
