#include "launcher/cli/accelerate_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr char kTwoMachines[] =
    "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 1\n"
    "main_process_ip: node0\nmain_process_port: 29501\n";

absl::StatusOr<AccelerateLaunch> Plan(const std::string& yaml, const Words& args,
                                      const Environment& environment = {},
                                      CliProgram program = CliProgram::kFsdprun) {
  return PlanAccelerate(
      program, args, AccelerateConfig(yaml, "f.yaml"), environment,
      {.physical_cores = 6, .is_port_free = [](uint16_t port) { return port != 29999; }});
}

Words Options(const std::string& yaml, const Words& args, const Environment& environment = {},
              CliProgram program = CliProgram::kFsdprun) {
  const auto launch = Plan(yaml, args, environment, program);
  EXPECT_TRUE(launch.ok()) << launch.status();
  return launch.ok() ? launch->options : Words();
}

std::string Refusal(const std::string& yaml, const Words& args = {"s.py"}) {
  const auto launch = Plan(yaml, args);
  EXPECT_TRUE(launch.ok() || absl::IsInvalidArgument(launch.status()));
  return launch.ok() ? "accepted" : std::string(launch.status().message());
}

TEST(AccelerateOptionsTest, WhatCannotBeIsNamedWithItsLine) {
  EXPECT_THAT(Refusal("distributed_type: MULTI_GPU\n"), HasSubstr("num_processes is missing"));
  EXPECT_EQ(Refusal("distributed_type: FSDP\nnum_processes: 0\n"),
            "f.yaml:2: num_processes = '0': expected 1 or more");
  EXPECT_EQ(Refusal("distributed_type: FSDP\nnum_processes: 3\nnum_machines: 2\n"),
            "f.yaml:2: num_processes = '3': expected a multiple of num_machines, 2");
  EXPECT_THAT(Refusal("distributed_type: FSDP\nnum_processes: 2\nnum_machines: 2\n"),
              HasSubstr("f.yaml: main_process_ip is missing"));
  EXPECT_THAT(
      Refusal("distributed_type: FSDP\nnum_processes: 2\nnum_machines: 2\nmachine_rank: 2\n"),
      HasSubstr("f.yaml:4: machine_rank = '2': expected a rank below num_machines, 2"));
  EXPECT_THAT(Refusal("distributed_type: FSDP\nnum_processes: 2\nnum_machines: 2\n"
                      "main_process_ip: 'node0:1'\n"),
              HasSubstr("f.yaml:4: main_process_ip = 'node0:1': expected the name"));
  EXPECT_THAT(Refusal("distributed_type: FSDP\nnum_processes: 2\nnum_machines: 2\n"
                      "main_process_ip: a\nmain_process_port: 0\n"),
              HasSubstr("f.yaml:5: main_process_port = '0'"));
}

TEST(AccelerateOptionsTest, NodesAndWorkersAreThoseOfTheFile) {
  EXPECT_THAT(Options(kTwoMachines, {"s.py"}),
              ElementsAre("--nproc-per-node=4", "--nnodes=2", "--rdzv-endpoint=node0:29501",
                          "--node-rank=1"));
  EXPECT_THAT(Options(absl::StrCat(kTwoMachines, "rdzv_backend: c10d\n"), {"s.py"}),
              ElementsAre("--nproc-per-node=4", "--nnodes=2", "--rdzv-backend=c10d",
                          "--rdzv-endpoint=node0:29501", "--node-rank=1"));
  EXPECT_THAT(Options("distributed_type: MULTI_CPU\nnum_processes: 3\n", {"s.py"}),
              ElementsAre("--nproc-per-node=3", "--nnodes=1"));
  EXPECT_THAT(Options("distributed_type: 'NO'\nmain_process_port: 0\n", {"s.py"}),
              ElementsAre("--nproc-per-node=1", "--nnodes=1", "--master-port=0"));
  EXPECT_THAT(Options("distributed_type: 'NO'\nmain_process_port: 29501\n", {"s.py"}),
              ElementsAre("--nproc-per-node=1", "--nnodes=1", "--master-port=29501"));
}

TEST(AccelerateOptionsTest, TheCommandLineCountsBeforeTheFile) {
  EXPECT_THAT(Options(kTwoMachines, {"--nproc-per-node", "2", "--node_rank=0", "s.py"}),
              ElementsAre("--nnodes=2", "--rdzv-endpoint=node0:29501"));
  EXPECT_THAT(Options(kTwoMachines, {"--rdzv-backend=c10d", "--rdzv-endpoint=b:1", "s.py"}),
              ElementsAre("--nproc-per-node=4", "--nnodes=2", "--node-rank=1"));
  EXPECT_THAT(Options(kTwoMachines, {"--standalone", "s.py"}), ElementsAre("--nproc-per-node=4"));
  EXPECT_THAT(
      Options("distributed_type: FSDP\nnum_processes: -1\n", {"--nproc-per-node=2", "s.py"}),
      ElementsAre("--nnodes=1"));
  EXPECT_THAT(Options(kTwoMachines, {"s.py", "--nnodes=7"}).size(), 4u) << "the script's own";
}

TEST(AccelerateOptionsTest, WhereOthersDecideOnlyTheWorkersAreTheFiles) {
  EXPECT_THAT(Options(kTwoMachines, {"--agents=a,b", "s.py"}), ElementsAre("--nproc-per-node=4"));
  EXPECT_THAT(Options(kTwoMachines, {"s.py"}, {{"SLURM_JOB_ID", "7"}}),
              ElementsAre("--nproc-per-node=4"));
  EXPECT_THAT(Options(kTwoMachines, {"--rdzv-endpoint=a:1", "s.py"}, {}, CliProgram::kFsdpAgent),
              ElementsAre("--nproc-per-node=4", "--node-rank=1"));
}

TEST(AccelerateOptionsTest, APortThatIsTakenIsReplacedAndTold) {
  const auto launch = Plan("distributed_type: 'NO'\nmain_process_port: 29999\n", {"s.py"});
  ASSERT_TRUE(launch.ok());
  EXPECT_THAT(launch->options, ElementsAre("--nproc-per-node=1", "--nnodes=1", "--master-port=0"));
  EXPECT_THAT(launch->warnings,
              ElementsAre("f.yaml:2: main_process_port: 29999 is in use; another one is taken"));
}

TEST(AccelerateOptionsTest, ThreadsOfAWorker) {
  const std::string cpu = "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n";
  EXPECT_EQ(Plan(cpu, {"s.py"})->variables.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(Plan(kTwoMachines, {"s.py"})->variables.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(Plan(cpu, {"s.py"}, {{"OMP_NUM_THREADS", "5"}})->variables.count("OMP_NUM_THREADS"),
            0u);
  EXPECT_EQ(Plan(cpu, {"--omp-threads=2", "s.py"})->variables.count("OMP_NUM_THREADS"), 0u);
}

TEST(AccelerateOptionsTest, WarningsOfTheFileAreTold) {
  EXPECT_THAT(
      Plan("distributed_type: 'NO'\nnum_processes: 2\nx: 1\n", {"s.py"})->warnings,
      ElementsAre(HasSubstr("f.yaml:3: x"), HasSubstr("f.yaml:2: num_processes: not used")));
}

TEST(AccelerateOptionsTest, NoFileIsReadForATextThatIsAskedFor) {
  const auto file = [](const Words& args) {
    return AccelerateFile(CliProgram::kFsdprun, args).value_or("error");
  };
  EXPECT_EQ(file({"--accelerate-config", "f", "s.py"}), "f");
  EXPECT_EQ(file({"--accelerate_config=f", "s.py"}), "f");
  EXPECT_EQ(file({"s.py", "--accelerate-config=f"}), "");
  EXPECT_EQ(file({"--accelerate-config=f", "--help"}), "");
  EXPECT_EQ(file({"--nothing"}), "error");
}

}  // namespace
}  // namespace fsdprun
