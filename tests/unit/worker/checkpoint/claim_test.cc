#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::worker::checkpoint {
namespace {

using ::testing::AllOf;
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
    Saver takes_over(options);
    takes_over.Save(9, StateOf(0, 1, 9));
  });
  EXPECT_FALSE(DirectoryExists(dir / "step-7"));
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 9);
}

TEST(CheckpointClaimTest, SameCommandClaimsAgainAfterRestarts) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
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
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 5);
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

}  // namespace
}  // namespace fsdprun::worker::checkpoint
