#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::worker::checkpoint {
namespace {

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
    EXPECT_FALSE(FindOfJob(dir / "absent", "run-1", group));
    save("run-1", 1);
    save("run-1", 2);
    save("run-2", 3);
    save("", 4);
    EXPECT_EQ(FindOfJob(dir.path(), "run-1", group)->step, 2);
    EXPECT_EQ(FindOfJob(dir.path(), "run-2", group)->step, 3);
    EXPECT_FALSE(FindOfJob(dir.path(), "run-3", group));
    EXPECT_FALSE(FindOfJob(dir.path(), "", group));
    std::filesystem::resize_file(dir / "step-2/__0_0.distcp", 100);
    EXPECT_EQ(FindOfJob(dir.path(), "run-1", group)->step, 1);
    EXPECT_EQ(warnings.size(), 1u);
    std::filesystem::resize_file(dir / "step-3/__0_0.distcp", 100);
    EXPECT_FALSE(FindOfJob(dir.path(), "run-2", group));
    EXPECT_EQ(warnings.size(), 2u);
  });
}

}  // namespace
}  // namespace fsdprun::worker::checkpoint
