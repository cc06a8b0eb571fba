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
  EXPECT_THAT(Options(kTwoMachines, {"--rdzv-backend=c10d", "s.py"}),
              ElementsAre("--nproc-per-node=4", "--nnodes=2", "--rdzv-endpoint=node0:29501",
                          "--node-rank=1"));
  EXPECT_THAT(Options(kTwoMachines, {"--standalone", "s.py"}), ElementsAre("--nproc-per-node=4"));
  EXPECT_THAT(
      Options("distributed_type: FSDP\nnum_processes: -1\n", {"--nproc-per-node=2", "s.py"}),
      ElementsAre("--nnodes=1"));
  EXPECT_THAT(Options(kTwoMachines, {"s.py", "--nnodes=7"}).size(), 4u) << "the script's own";
}

TEST(AccelerateOptionsTest, NumbersOfTheCommandLineStandForTheKeysEverywhere) {
  const std::string one =
      "distributed_type: FSDP\nnum_processes: 4\nmachine_rank: 1\n"
      "main_process_port: 29501\n";
  EXPECT_THAT(Options(kTwoMachines, {"--nnodes=1", "s.py"}),
              ElementsAre("--nproc-per-node=8", "--master-port=29501"));
  EXPECT_THAT(Options(kTwoMachines, {"--nnodes=1", "--nproc-per-node=2", "s.py"}),
              ElementsAre("--master-port=29501"));
  EXPECT_THAT(Options(absl::StrCat(one, "main_process_ip: a\n"), {"--nnodes=1:2", "s.py"}),
              ElementsAre("--nproc-per-node=2", "--rdzv-endpoint=a:29501", "--node-rank=1"));
  EXPECT_THAT(Refusal(one, {"--nnodes=2", "s.py"}),
              HasSubstr("main_process_ip is missing: expected the address of the machine with "
                        "machine_rank 0, as --nnodes is 2"));
  EXPECT_EQ(Refusal(one, {"--nnodes=3", "s.py"}),
            "f.yaml:2: num_processes = '4': expected a multiple of --nnodes, 3");
  EXPECT_THAT(Options(one, {"--nnodes=many", "s.py"}),
              ElementsAre("--nproc-per-node=4", "--master-port=29501"))
      << "what is wrong with it is told with the rest of the command line";
  EXPECT_THAT(Options(kTwoMachines, {"--agents=a,b", "--nnodes=1:2", "s.py"}),
              ElementsAre("--nproc-per-node=4"));
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
  EXPECT_EQ(Plan(cpu, {"--nproc-per-node=6", "s.py"})->variables.at("OMP_NUM_THREADS"), "1");
}

TEST(AccelerateOptionsTest, ThreadsAreCountedWhereTheWorkersAre) {
  const std::string cpu = "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n";
  for (const Words& args : {Words{"--nproc-per-node=auto", "s.py"}, Words{"--agents=a,b", "s.py"},
                            Words{"--ssh", "--hostfile=h", "s.py"}}) {
    const auto launch = Plan(cpu, args);
    ASSERT_TRUE(launch.ok());
    EXPECT_EQ(launch->options.back(), "--omp-threads=auto");
    EXPECT_EQ(launch->variables.count("OMP_NUM_THREADS"), 0u);
  }
  EXPECT_EQ(Plan(cpu, {"s.py"}, {{"SLURM_JOB_ID", "7"}})->options.back(), "--omp-threads=auto");
}

TEST(AccelerateOptionsTest, SeveralWorkersThatAreNotBoundAreNotPinned) {
  const std::string cpu = "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n";
  const auto is_pinned = [&cpu](const Words& args) {
    return Plan(cpu, args)->variables.count("KMP_AFFINITY") > 0;
  };
  EXPECT_FALSE(is_pinned({"s.py"}));
  EXPECT_FALSE(is_pinned({"--nproc-per-node=auto", "s.py"}));
  EXPECT_TRUE(is_pinned({"--nproc-per-node=1", "s.py"}));
  EXPECT_FALSE(is_pinned({"--nproc-per-node=1", "--hostfile=h", "s.py"}));  // It may have slots.
  EXPECT_TRUE(is_pinned({"--numa-binding=node", "s.py"}));
}

TEST(AccelerateOptionsTest, OneProcessOfASimpleLaunchHasNoRanks) {
  const auto is_plain = [](const std::string& yaml, const Words& args = {"s.py"}) {
    return Plan(yaml, args)->variables.count("FSDPRUN_LONE_WORKER_IS_PLAIN") > 0;
  };
  const std::string none = "distributed_type: 'NO'\nmain_process_ip: a\nnum_machines: 2\n";
  EXPECT_TRUE(is_plain(none));
  EXPECT_TRUE(is_plain(none, {"--agents=a", "s.py"}));
  EXPECT_FALSE(is_plain(none, {"--agents=a,b", "s.py"}));
  EXPECT_FALSE(is_plain(none, {"--agents=a", "--nnodes=1:2", "s.py"}));
  EXPECT_FALSE(is_plain(none, {"--nproc-per-node=2", "s.py"}));
  EXPECT_FALSE(is_plain(none, {"--nproc-per-node=auto", "s.py"}));
  EXPECT_FALSE(is_plain(none, {"--nnodes=2", "s.py"}));
  const std::string cpu = "distributed_type: MULTI_CPU\nnum_processes: 1\n";
  EXPECT_TRUE(is_plain(cpu));
  EXPECT_FALSE(is_plain(cpu, {"--nproc-per-node=2", "s.py"}));
  EXPECT_FALSE(is_plain(cpu, {"--agents=a,b", "s.py"}));
  EXPECT_FALSE(is_plain("distributed_type: FSDP\nnum_processes: 1\n"));
  EXPECT_FALSE(is_plain("distributed_type: MULTI_GPU\nnum_processes: 1\n"));
}

TEST(AccelerateOptionsTest, WarningsOfTheFileAreTold) {
  EXPECT_THAT(
      Plan("distributed_type: 'NO'\nnum_processes: 2\nx: 1\n", {"s.py"})->warnings,
      ElementsAre(HasSubstr("f.yaml:3: x"), HasSubstr("f.yaml:2: num_processes: not used")));
}

TEST(AccelerateOptionsTest, KeysFromWhichNothingComesAreTold) {
  const auto warnings = [](const std::string& yaml, const Words& args = {"s.py"}) {
    return Plan(yaml, args)->warnings;
  };
  const std::string two = "distributed_type: MULTI_CPU\nnum_processes: 2\n";
  EXPECT_THAT(warnings(absl::StrCat(kTwoMachines, "rdzv_backend: c10d\n")),
              ElementsAre("f.yaml:7: rdzv_backend: not used, as by accelerate launch; give "
                          "--rdzv-backend"));
  EXPECT_THAT(warnings(absl::StrCat(two, "rdzv_backend: static\n")), ElementsAre());
  EXPECT_THAT(warnings(absl::StrCat(two, "gpu_ids: 0,1\n"), {"--agents=a", "s.py"}),
              ElementsAre(HasSubstr("f.yaml:3: gpu_ids: not sent to the nodes")));
  EXPECT_THAT(warnings(absl::StrCat(two, "gpu_ids: 0,1\n")), ElementsAre());
  const std::string mpi = absl::StrCat(two, "mpirun_config:\n  mpirun_hostfile: h\n");
  EXPECT_THAT(warnings(mpi), ElementsAre(HasSubstr("f.yaml:4: mpirun_config.mpirun_hostfile: not "
                                                   "used, as workers are started without mpirun")));
  EXPECT_THAT(warnings(mpi, {"--hostfile=h", "s.py"}), ElementsAre());
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
