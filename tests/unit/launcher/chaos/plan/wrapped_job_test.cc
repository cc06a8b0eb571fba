#include "launcher/chaos/plan/wrapped_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<WrappedJob> Read(const std::vector<std::string>& command, int nodes = 0) {
  return ReadWrappedJob(command, nodes, "chaos-1");
}

TEST(WrappedJobTest, WhoseNodesMeetOtherwiseIsRefused) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"fsdprun", "--nnodes=2", "--node-rank=0", "t.py"},
        std::vector<std::string>{"fsdprun", "--nnodes=2", "--rdzv-backend=etcd", "t.py"},
        std::vector<std::string>{"fsdprun", "--nnodes=2", "--master-addr=h", "t.py"}}) {
    EXPECT_THAT(std::string(Read(command).status().message()), HasSubstr("c10d")) << command[2];
  }
  EXPECT_EQ(Read({"fsdprun", "--unknown"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Read({"fsdprun", "--nnodes=4", "t.py"}, 3).ok());
  EXPECT_FALSE(Read({"bash", "run.sh"}, 2).ok());
}

TEST(WrappedJobTest, OneLauncherIsStartedAsItIs) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"bash", "run.sh", "--nnodes=2"},
        std::vector<std::string>{"fsdprun", "--standalone", "t.py"},
        std::vector<std::string>{"fsdprun", "t.py"},
        std::vector<std::string>{"fsdprun", "--nnodes=2", "--agents=a,b", "t.py"}}) {
    const absl::StatusOr<WrappedJob> job = Read(command);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->form, Form::kOneLauncher);
    EXPECT_EQ(job->command, command);
  }
}

TEST(WrappedJobTest, NodesGetACoordinatorAndTheirOwnWaysToIt) {
  const absl::StatusOr<WrappedJob> job =
      Read({"bin/fsdprun", "--nnodes=2", "--max-restarts", "9", "--rdzv-endpoint=h:1",
            "--no-python", "--rdzv-conf=join_timeout=5", "train", "--nnodes=3"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->form, Form::kNodes);
  EXPECT_EQ(job->nodes, 2);
  EXPECT_THAT(CoordinatorCommand(*job, 7, "/j"),
              ElementsAre("bin/fsdprun", "--max-restarts=9", "--nnodes=2", "--no-python",
                          "--rdzv-backend=c10d", "--rdzv-id=chaos-1", "--rdzv-endpoint=127.0.0.1:7",
                          "--coordinator", "--journal=/j", "--rdzv-conf=join_timeout=5"));
  EXPECT_THAT(NodeCommand(*job, 8),
              ElementsAre("bin/fsdprun", "--max-restarts=9", "--nnodes=2", "--no-python",
                          "--rdzv-backend=c10d", "--rdzv-id=chaos-1", "--rdzv-endpoint=127.0.0.1:8",
                          "--rdzv-conf=join_timeout=5,is_host=0", "--", "train", "--nnodes=3"));
}

TEST(WrappedJobTest, AnElasticJobGetsAsManyAsItTakesOrAsItIsGiven) {
  EXPECT_EQ(Read({"fsdprun", "--nnodes=1:3", "t.py"})->nodes, 3);
  EXPECT_EQ(Read({"fsdprun", "--nnodes=1:3", "t.py"}, 2)->nodes, 2);
  EXPECT_EQ(Read({"fsdprun", "--nnodes=2", "--rdzv-id=mine", "t.py"})->run_id, "mine");
}

TEST(WrappedJobTest, VariablesSayWhatTheCommandDoesNot) {
  const std::vector<std::string> command{"fsdprun", "t.py"};
  const Environment environment{{"PET_NNODES", "2"}, {"PET_RDZV_CONF", "join_timeout=5"}};
  const absl::StatusOr<WrappedJob> job = ReadWrappedJob(command, 0, "chaos-1", environment);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->nodes, 2);
  EXPECT_THAT(NodeCommand(*job, 8),
              ElementsAre("fsdprun", "--rdzv-backend=c10d", "--rdzv-id=chaos-1",
                          "--rdzv-endpoint=127.0.0.1:8", "--rdzv-conf=join_timeout=5,is_host=0",
                          "--", "t.py"));
  EXPECT_EQ(ReadWrappedJob({"fsdprun", "--nnodes=1", "t.py"}, 0, "chaos-1", environment)->form,
            Form::kOneLauncher);
  EXPECT_THAT(std::string(ReadWrappedJob(command, 0, "chaos-1",
                                         {{"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "h"}})
                              .status()
                              .message()),
              HasSubstr("PET_MASTER_ADDR"));
}

TEST(WrappedJobTest, TheJournalOfTheCommandIsTheCoordinatorsAlone) {
  const absl::StatusOr<WrappedJob> job = Read({"fsdprun", "--nnodes=2", "--journal=/mine", "t.py"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(CoordinatorCommand(*job, 7, "/j"),
              ElementsAre("fsdprun", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=chaos-1",
                          "--rdzv-endpoint=127.0.0.1:7", "--coordinator", "--journal=/mine"));
  EXPECT_THAT(NodeCommand(*job, 8), testing::Not(testing::Contains(HasSubstr("journal"))));
}

}  // namespace
}  // namespace fsdprun::chaos
