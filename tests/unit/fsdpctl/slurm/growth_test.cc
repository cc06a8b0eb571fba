#include "fsdpctl/slurm/growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdpctl/slurm/batch_file.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

SlurmJoinRecord Record() {
  return {.job = "12",
          .run_id = "slurm-12",
          .token = "secret",
          .coordinators = "10.0.0.1:4000",
          .folder = "/data/a b",
          .command = {"/opt/bin/fsdprun", "--nnodes=2:4", "train.py"},
          .resources = {{"partition", "gpu"}, {"gpus-per-node", "8"}}};
}

ListedJob Listed(const std::string& job, const std::string& nodes,
                 const std::string& state = "RUNNING") {
  return {.job = job,
          .state = state,
          .nodes = nodes,
          .shares = "OK",
          .time_left = "INVALID",
          .resources = "N/A",
          .features = "(null)",
          .name = "train",
          .comment = "(null)"};
}

std::string Grow(const std::vector<std::string>& args,
                 const std::vector<ListedJob>& queue = {Listed("12", "n[1-2]")}) {
  const auto growth = ReadGrowth(args, {});
  if (!growth.ok()) {
    return std::string(growth.status().message());
  }
  const auto submission = PlanGrowth(*growth, Record(), queue, "/opt/bin/fsdpctl");
  return submission.ok() ? BatchText(submission->file) : std::string(submission.status().message());
}

TEST(GrowthTest, OtherJobAsksForTheSameKindOfNodes) {
  const std::string text = Grow({"12", "--nodes", "2"});
  EXPECT_THAT(text,
              AllOf(HasSubstr("--job-name=grow-12\n"), HasSubstr("--nodes=2\n"),
                    HasSubstr("--partition=gpu\n"), HasSubstr("--gpus-per-node=8\n"),
                    HasSubstr("--no-kill\n"), HasSubstr("exec /opt/bin/fsdpctl slurm join 12\n")));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST(GrowthTest, OptionsStandBeforeTheJobOrBehindIt) {
  EXPECT_THAT(Grow({"--time=5", "12", "-N", "3", "--partition=slow"}),
              AllOf(HasSubstr("--time=5\n"), HasSubstr("--nodes=3\n"),
                    HasSubstr("--partition=slow\n"), Not(HasSubstr("partition=gpu"))));
  EXPECT_THAT(Grow({"12"}), HasSubstr("--nodes=1\n"));
}

TEST(GrowthTest, ItsNodesAreOfTheKindThatTheJobAskedFor) {
  ListedJob job = Listed("12", "n1");
  EXPECT_THAT(Grow({"12"}, {job}), Not(AnyOf(HasSubstr("constraint"), HasSubstr("gres"),
                                             HasSubstr("exclusive"), HasSubstr("time"))));
  job.features = "a100|h100";
  job.resources = "gres:gpu:8,gres/nvme:1";
  job.shares = "NO";
  job.time_left = "1-02:03:04";
  EXPECT_THAT(Grow({"12"}, {job}),
              AllOf(HasSubstr("--constraint=\"a100|h100\"\n"), HasSubstr("--gres=nvme:1\n"),
                    HasSubstr("--exclusive\n"), HasSubstr("--time=1-02:03:04\n")));
  EXPECT_THAT(Grow({"12", "--constraint=h100", "--time=5", "--gres=disk"}, {job}),
              AllOf(HasSubstr("--constraint=h100\n"), HasSubstr("--gres=disk\n"),
                    HasSubstr("--time=5\n"), Not(HasSubstr("a100"))));
  job.time_left = "UNLIMITED";
  EXPECT_THAT(Grow({"12"}, {job}), HasSubstr("--time=UNLIMITED\n"));
  job.time_left = "0:00";  // It would be no limit.
  EXPECT_THAT(Grow({"12"}, {job}), Not(HasSubstr("--time")));
}

TEST(GrowthTest, GpusThatWereAskedForAsGresAreAskedForAgain) {
  const auto growth = ReadGrowth({"12"}, {});
  SlurmJoinRecord record = Record();
  record.resources.clear();
  ListedJob job = Listed("12", "n1");
  job.resources = "gres:gpu:a100:4";
  EXPECT_THAT(BatchText(PlanGrowth(*growth, record, {job}, "fsdpctl")->file),
              HasSubstr("--gres=gpu:a100:4\n"));
}

TEST(GrowthTest, NodesThatTheJobHasNowAreExcluded) {
  ListedJob lent = Listed("13", "n7");
  lent.name = "grow-12";
  ListedJob given_back = lent;
  given_back.state = "COMPLETING";
  given_back.nodes = "n8";
  EXPECT_THAT(Grow({"12"}, {Listed("12", "n[1-2]"), Listed("14", "n9"), lent, given_back}),
              HasSubstr("--exclude=\"n[1-2],n7\"\n"));
  EXPECT_THAT(Grow({"12", "--exclude=n5"}), HasSubstr("--exclude=\"n5,n[1-2]\"\n"));
  EXPECT_THAT(Grow({"12", "--exclude=./bad"}), HasSubstr("--exclude=./bad\n"));
  const std::string many(9000, 'n');
  EXPECT_THAT(Grow({"12"}, {Listed("12", many)}), HasSubstr("give --exclude=./FILE"));
  EXPECT_THAT(Grow({"12", "--exclude=./file"}, {Listed("12", many)}),
              HasSubstr("--exclude=./file\n"));
}

TEST(GrowthTest, JobOfAnotherNameIsKnownByItsComment) {
  EXPECT_THAT(Grow({"12"}), Not(HasSubstr("--comment")));
  for (const char* option : {"--job-name=more", "--sbatch-args=--job-name=more"}) {
    EXPECT_THAT(Grow({"12", option}), HasSubstr("--comment=grow-12\n"));
  }
  EXPECT_THAT(Grow({"12", "--job-name=more", "--comment=mine"}), Not(HasSubstr("grow-12")));
  ListedJob lent = Listed("13", "n7");
  lent.comment = "grow-12";
  EXPECT_THAT(Grow({"12"}, {Listed("12", "n1"), lent}), HasSubstr("--exclude=n1,n7\n"));
}

TEST(GrowthTest, JobThatDoesNotRunDoesNotGrow) {
  EXPECT_THAT(Grow({"12"}, {}), HasSubstr("job 12 does not run, but is over"));
  EXPECT_THAT(Grow({"12"}, {Listed("12", "", "PENDING")}), HasSubstr("but is PENDING"));
  EXPECT_THAT(Grow({"12"}, {Listed("1", "n1"), Listed("12_1", "n2")}), HasSubstr("is over"));
}

TEST(GrowthTest, HeterogeneousJobRunsIfAllItsComponentsDo) {
  EXPECT_THAT(Grow({"12"}, {Listed("12", "n1"), Listed("12", "n2")}),
              HasSubstr("--exclude=n1,n2\n"));
  EXPECT_THAT(Grow({"12"}, {Listed("12", "n1", "COMPLETING"), Listed("12", "n2")}),
              HasSubstr("but is COMPLETING"));
}

TEST(GrowthTest, WhatCannotBeReadIsAnErrorOfUsage) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{},
                                               {"x"},
                                               {"12", "13"},
                                               {"--nodes", "2"},
                                               {"12", "--nproc-per-node=2"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadGrowth(args, {}).status()));
  }
  EXPECT_THAT(Grow({"../12"}), HasSubstr("'../12' is not the id of a running job"));
  EXPECT_THAT(Grow({"12", "--nodes=x"}), HasSubstr("--nodes: 'x'"));
}

// The shell of a batch file may be where no GPU is, or none that is visible to it.
TEST(GrowthTest, WorkersForEachGpuAreTheAffairOfTheNodesThatJoin) {
  SlurmAllocation allocation;
  allocation.groups = {{.job_id = 13, .nodes = {"n3", "n4"}}};
  SlurmJoinRecord record = Record();
  record.command = {"/opt/bin/fsdprun", "--nnodes=1:4", "--nproc-per-node=gpu", "train.py"};
  const auto command = JoinCommand(allocation, record);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(absl::StrJoin(command->end() - 4, command->end(), " "),
            "/opt/bin/fsdprun --nnodes=1:4 --nproc-per-node=gpu train.py");
  EXPECT_THAT(*command, Contains("--nodes=2"));
}

}  // namespace
}  // namespace fsdprun
