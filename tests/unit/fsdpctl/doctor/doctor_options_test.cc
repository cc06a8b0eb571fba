#include "fsdpctl/doctor/doctor_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

DoctorOptions Options(const std::vector<std::string>& args, const Environment& environment = {}) {
  const absl::StatusOr<DoctorOptions> options = ReadDoctorOptions(args, environment);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.value_or(DoctorOptions());
}

/// A task of an srun on three nodes.
Environment Task(int rank) {
  const std::string number = std::to_string(rank);
  return {{"SLURM_JOB_ID", "100"},
          {"SLURM_JOB_NODELIST", "n[1-3]"},
          {"SLURM_JOB_NUM_NODES", "3"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "n[1-3]"},
          {"SLURM_STEP_NUM_NODES", "3"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
          {"SLURM_NTASKS", "3"},
          {"SLURM_PROCID", number},
          {"SLURM_NODEID", number},
          {"SLURM_LOCALID", "0"},
          {"SLURMD_NODENAME", "n" + std::to_string(rank + 1)}};
}

TEST(DoctorOptionsTest, OneMachine) {
  const DoctorOptions options =
      Options({"--all", "--json", "--port=1234", "--log-dir", "logs", "--python", "py"});
  EXPECT_TRUE(options.shows_all);
  EXPECT_TRUE(options.is_json);
  EXPECT_EQ(options.port, 1234);
  EXPECT_TRUE(options.port_is_given);
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.python, "py");
  EXPECT_EQ(options.role, PairRole::kNone);
  EXPECT_EQ(Options({}).port, 29400);
  EXPECT_EQ(Options({}, {{"PYTHON_EXEC", "/venv/python"}}).python, "/venv/python");
}

TEST(DoctorOptionsTest, NodesMeetAtAnEndpoint) {
  const DoctorOptions options = Options({"--rdzv-endpoint", "node0:1234", "--nnodes=4"});
  EXPECT_EQ(options.role, PairRole::kMeet);
  EXPECT_EQ(options.place.endpoint.host, "node0");
  EXPECT_EQ(options.port, 1234);
  EXPECT_EQ(options.nodes, 4);
  EXPECT_TRUE(options.patience.has_value());
  EXPECT_TRUE(options.leaves_printing);
  EXPECT_EQ(Options({"--rdzv-endpoint=node0"}).nodes, 2);
  EXPECT_EQ(Options({"--rdzv-endpoint=node0", "--port=7"}).port, 7);
}

TEST(DoctorOptionsTest, OneListensAndOthersGo) {
  const DoctorOptions listens = Options({"--listen", "--no-token"});
  EXPECT_EQ(listens.role, PairRole::kListen);
  EXPECT_EQ(listens.nodes, 0);
  EXPECT_FALSE(listens.patience.has_value());
  EXPECT_TRUE(listens.takes_anybody);
  const DoctorOptions goes = Options({"--with", "node0", "--timeout=1.5"});
  EXPECT_EQ(goes.role, PairRole::kGo);
  EXPECT_FALSE(goes.leaves_printing);
  EXPECT_EQ(goes.patience, std::chrono::milliseconds(1500));
}

TEST(DoctorOptionsTest, InAStepOfSlurmTheNodesMeetAtItsFirst) {
  const DoctorOptions first = Options({}, Task(0));
  EXPECT_EQ(first.role, PairRole::kListen);
  EXPECT_EQ(first.nodes, 3);
  EXPECT_FALSE(first.leaves_printing);
  const DoctorOptions third = Options({}, Task(2));
  EXPECT_EQ(third.role, PairRole::kGo);
  EXPECT_EQ(third.place.endpoint.host, "n1");
  EXPECT_EQ(third.port, first.port);
  EXPECT_TRUE(third.leaves_printing);
  EXPECT_EQ(third.place.node_name, "n3");
  EXPECT_EQ(Options({"--nnodes=1"}, Task(2)).role, PairRole::kNone);
  EXPECT_EQ(Options({"--with=n1"}, Task(2)).leaves_printing, false);
}

TEST(DoctorOptionsTest, WhatMeansNothing) {
  const auto status = [](const std::vector<std::string>& args) {
    return ReadDoctorOptions(args, {}).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(status({"--listen", "--with=a"})));
  EXPECT_TRUE(absl::IsInvalidArgument(status({"--rdzv-endpoint=a", "--listen"})));
  EXPECT_THAT(status({"node0"}).message(), HasSubstr("--with HOST"));
  EXPECT_TRUE(absl::IsInvalidArgument(status({"--port=x"})));
  EXPECT_TRUE(absl::IsOutOfRange(status({"--port=0"})));
  EXPECT_TRUE(absl::IsOutOfRange(status({"--nnodes=0"})));
  EXPECT_TRUE(absl::IsOutOfRange(status({"--with=a:b"})));
  EXPECT_TRUE(absl::IsOutOfRange(status({"--timeout=-1"})));
  EXPECT_FALSE(status({"--follow"}).ok());
}

TEST(DoctorOptionsTest, TextsAreForTheReaderWhateverElseIsGiven) {
  EXPECT_EQ(Options({"--help", "more"}).request, Request::kHelp);
  EXPECT_EQ(Options({"--man"}).request, Request::kManPage);
  EXPECT_EQ(Options({"--version"}).request, Request::kVersion);
}

}  // namespace
}  // namespace fsdprun::doctor
