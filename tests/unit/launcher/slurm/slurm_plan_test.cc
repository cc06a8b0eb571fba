#include "launcher/slurm/slurm_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "absl/strings/str_join.h"
#include "launcher/cli/command_line.h"
#include "tests/unit/launcher/slurm/recorded.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

struct Fitted {
  SlurmPlace place;
  LaunchPlan plan;
  std::string error;
};

Fitted FitIn(const Environment& environment, std::vector<std::string> args) {
  args.insert(args.end(), {"--no-python", "prog"});
  absl::StatusOr<LaunchPlan> plan = ParseCommandLine(CliProgram::kFsdprun, args, environment, {});
  Fitted fitted;
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (plan.ok()) {
    fitted.plan = *plan;
    const auto place = FitToSlurm(environment, &fitted.plan);
    fitted.error = std::string(place.status().message());
    fitted.place = place.ok() ? *place : SlurmPlace();
  }
  return fitted;
}

Fitted Fit(const std::string& kind, std::vector<std::string> args = {}) {
  return FitIn(Recorded(kind), std::move(args));
}

TEST(SlurmPlanTest, NothingChangesOutsideOfSlurm) {
  const Fitted fitted = FitIn({}, {"--nnodes=2"});
  EXPECT_EQ(fitted.place.role, SlurmRole::kNone);
  EXPECT_EQ(fitted.plan.backend, RendezvousBackend::kStatic);
  EXPECT_THAT(fitted.plan.node_name, IsEmpty());
}

TEST(SlurmPlanTest, ShellOfSeveralNodesHostsForAllOfThem) {
  const Fitted batch = Fit("batch");
  EXPECT_EQ(batch.place.role, SlurmRole::kShell);
  EXPECT_EQ(batch.plan.min_nodes, 2);
  EXPECT_EQ(batch.plan.max_nodes, 2);
  EXPECT_EQ(batch.plan.rdzv_id, "slurm-2");
  EXPECT_EQ(Fit("batch_of_heterogeneous_job").plan.max_nodes, 3);
  EXPECT_EQ(Fit("salloc_interactive_step").place.role, SlurmRole::kShell);
  EXPECT_EQ(Fit("batch", {"--rdzv-id=mine"}).plan.rdzv_id, "mine");
}

TEST(SlurmPlanTest, ShellOfItsOnlyNodeIsAlone) {
  EXPECT_EQ(Fit("batch_of_array").place.role, SlurmRole::kNone);
  EXPECT_EQ(Fit("batch_of_array").plan.max_nodes, 1);
  EXPECT_EQ(Fit("batch_of_array").plan.node_name, "node1");
  // The shell of salloc may be on no node of the job.
  Environment elsewhere = Recorded("batch_of_array");
  elsewhere.erase("SLURMD_NODENAME");
  EXPECT_EQ(FitIn(elsewhere, {}).place.role, SlurmRole::kShell);
}

TEST(SlurmPlanTest, ShellOfOneNodeHostsForThoseThatMayJoin) {
  const Fitted fitted = Fit("batch_of_array", {"--nnodes=1:4"});
  EXPECT_EQ(fitted.place.role, SlurmRole::kShell);
  EXPECT_EQ(fitted.plan.max_nodes, 4);
}

TEST(SlurmPlanTest, WhoJoinsFromAnotherJobHasNoRankAndNoSizeInThisOne) {
  Environment environment = Recorded("step");
  environment[kEnvSlurmCoordinators] = "10.0.0.1:4000";
  environment[kEnvSlurmRunId] = "slurm-1";
  EXPECT_THAT(FitIn(environment, {"--nnodes=3:4"}).error, HasSubstr("3 nodes are needed"));
  environment[kEnvSlurmJoins] = "1";
  const Fitted fitted = FitIn(environment, {"--nnodes=3:4"});
  EXPECT_EQ(fitted.error, "");
  EXPECT_EQ(fitted.place.role, SlurmRole::kTask);
  EXPECT_EQ(fitted.plan.node_rank, -1);
  EXPECT_EQ(fitted.plan.rdzv_id, "slurm-1");
  EXPECT_EQ(fitted.plan.is_host, false);
}

TEST(SlurmPlanTest, CommandLineThatSaysWhereTheOthersAreIsTakenAtItsWord) {
  for (const char* kind : {"batch", "step", "step_of_several_tasks"}) {
    for (const char* arg : {"--standalone", "--nnodes=1", "--rdzv-endpoint=h:29500",
                            "--master-addr=h", "--node-rank=0", "--rdzv-backend=etcd"}) {
      const Fitted fitted = Fit(kind, {arg});
      EXPECT_EQ(fitted.place.role, SlurmRole::kNone) << kind << " " << arg;
      EXPECT_EQ(fitted.plan.rdzv_id,
                arg == std::string("--standalone") ? fitted.plan.rdzv_id : "none");
      EXPECT_THAT(fitted.plan.node_name, Not(IsEmpty()));
    }
  }
  // The default endpoint of c10d is each node itself.
  EXPECT_EQ(Fit("step", {"--rdzv-backend=c10d", "--nnodes=2"}).place.role, SlurmRole::kTask);
}

TEST(SlurmPlanTest, NoNodeHostsAtTheNameOfAnother) {
  const std::vector<std::string> elsewhere{"--rdzv-backend=c10d", "--rdzv-endpoint=node1:4000"};
  EXPECT_EQ(Fit("step", elsewhere).plan.is_host, false);
  const std::vector<std::string> here{"--rdzv-backend=c10d", "--rdzv-endpoint=node2:4000"};
  EXPECT_EQ(Fit("step", here).plan.is_host, std::nullopt);
  const std::vector<std::string> foreign{"--rdzv-backend=c10d", "--rdzv-endpoint=login:4000"};
  EXPECT_EQ(Fit("step", foreign).plan.is_host, std::nullopt);
}

TEST(SlurmPlanTest, VariablesThatNobodyNeedsMayBeWrong) {
  Environment wrong = Recorded("step");
  wrong["SLURM_PROCID"] = "x";
  EXPECT_EQ(FitIn(wrong, {"--standalone"}).error, "");
  EXPECT_THAT(FitIn(wrong, {}).error, HasSubstr("SLURM_PROCID='x'"));
}

TEST(SlurmPlanTest, TasksMeetAtTheFirstNodeOfTheirStep) {
  const Fitted second = Fit("step");
  EXPECT_EQ(second.place.role, SlurmRole::kTask);
  EXPECT_EQ(second.plan.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(second.plan.endpoint, (HostPort{"node1", 20002}));
  EXPECT_EQ(second.plan.is_host, false);
  EXPECT_EQ(second.plan.max_nodes, 2);
  EXPECT_EQ(second.plan.node_rank, 1);
  EXPECT_EQ(second.plan.node_name, "node2");
  EXPECT_EQ(second.plan.rdzv_id, "slurm-2.0");
  EXPECT_EQ(second.plan.local_place, std::nullopt);
  EXPECT_THAT(second.plan.known_hosts, ElementsAre(std::pair("node1", "127.0.0.1")));

  Environment environment = Recorded("step");
  environment["SLURM_PROCID"] = environment["SLURM_NODEID"] = "0";
  EXPECT_EQ(FitIn(environment, {}).plan.is_host, true);
  EXPECT_EQ(FitIn(environment, {"--master-port=1234"}).plan.endpoint.port, 1234);
  environment["SLURM_STEP_ID"] = "1";
  environment["SLURM_RESTART_COUNT"] = "3";
  EXPECT_EQ(FitIn(environment, {}).plan.endpoint.port, 20002 + 997);
  EXPECT_EQ(FitIn(environment, {}).plan.rdzv_id, "slurm-2.1-restart-3");
}

TEST(SlurmPlanTest, SeveralTasksOnANodeHaveOneWorkerEach) {
  const Fitted last = Fit("step_of_several_tasks");
  EXPECT_EQ(last.plan.nproc_per_node, 1);
  EXPECT_EQ(last.plan.max_nodes, 5);
  EXPECT_EQ(last.plan.node_rank, 4);
  EXPECT_EQ(last.plan.local_place, (LaunchPlan::LocalPlace{0, 1}));
  EXPECT_EQ(Fit("step_of_several_tasks", {"--nnodes=3"}).plan.max_nodes, 5);
  const Fitted component = Fit("step_of_one_component", {"--nproc-per-node=2"});
  EXPECT_EQ(component.plan.nproc_per_node, 1);
  EXPECT_EQ(component.plan.local_place, (LaunchPlan::LocalPlace{1, 2}));
}

TEST(SlurmPlanTest, TwoLaunchersOnANodeAreRefused) {
  EXPECT_THAT(Fit("step_of_one_component", {"--nproc-per-node=4"}).error,
              AllOf(HasSubstr("SLURM_STEP_TASKS_PER_NODE"), HasSubstr("node2"),
                    HasSubstr("--ntasks-per-node=1")));
  EXPECT_THAT(Fit("step_of_one_component", {"--nnodes=2:4"}).error,
              AllOf(HasSubstr("--nnodes"), HasSubstr("SLURM_STEP_TASKS_PER_NODE")));
}

TEST(SlurmPlanTest, AllocationThatIsTooSmallIsRefused) {
  EXPECT_THAT(Fit("batch", {"--nnodes=3"}).error,
              AllOf(HasSubstr("--nnodes: 3 nodes"), HasSubstr("SLURM_JOB_NODELIST=node[1-2]"),
                    HasSubstr("2 nodes; ask Slurm")));
  EXPECT_THAT(Fit("step", {"--nnodes=3:5"}).error, HasSubstr("SLURM_STEP_NUM_NODES"));
  EXPECT_THAT(Fit("batch_of_array", {"--nnodes=2"}).error, HasSubstr("has 1 node"));
  // Nodes that are too many are spares; more may come.
  EXPECT_EQ(Fit("salloc", {"--nnodes=2"}).plan.max_nodes, 2);
  EXPECT_EQ(Fit("step", {"--nnodes=1:8"}).plan.max_nodes, 8);
}

TEST(SlurmPlanTest, TaskOfAShellGoesToItsCoordinator) {
  Environment environment = Recorded("step");
  environment = SrunEnvironment(environment, "10.0.0.1:4000,[fd00::1]:4000", "slurm-2", "t");
  const Fitted fitted = FitIn(environment, {});
  EXPECT_EQ(fitted.place.role, SlurmRole::kTask);
  EXPECT_THAT(fitted.plan.coordinators,
              ElementsAre(HostPort{"10.0.0.1", 4000}, HostPort{"fd00::1", 4000}));
  EXPECT_EQ(fitted.plan.rdzv_id, "slurm-2");
  EXPECT_EQ(fitted.plan.is_host, false);
  EXPECT_EQ(fitted.plan.node_rank, 1);
  environment[kEnvSlurmCoordinators] = "nowhere";
  EXPECT_THAT(FitIn(environment, {}).error, HasSubstr("FSDPRUN_SLURM_COORDINATORS: 'nowhere'"));
}

TEST(SlurmPlanTest, StepHasOneAgentOnEachNode) {
  const Fitted batch = Fit("batch", {"--srun-args=--container-image=x  --cpu-bind=none"});
  const std::string command =
      absl::StrJoin(SrunCommand(batch.place.allocation, batch.plan, {"fsdprun", "prog"}), " ");
  EXPECT_EQ(command,
            "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 "
            "--mpi=none --export=ALL --input=none --container-image=x --cpu-bind=none fsdprun "
            "prog");
  const Fitted het = Fit("batch_of_heterogeneous_job");
  EXPECT_THAT(absl::StrJoin(SrunCommand(het.place.allocation, het.plan, {"fsdprun", "prog"}), " "),
              AllOf(HasSubstr("srun --het-group=0 --nodes=1 --ntasks=1 "),
                    HasSubstr(" fsdprun prog : --het-group=1 --nodes=2 --ntasks=2 ")));
}

TEST(SlurmPlanTest, NoticesOfTheSchedulerEndTheJobUnlessTheyAreForTheWorkers) {
  const auto has = [](const LaunchPlan& plan, int signal) {
    return std::count(plan.signals.begin(), plan.signals.end(), signal) == 1;
  };
  for (const char* kind : {"batch", "step", "srun_alone"}) {
    const LaunchPlan plan = Fit(kind).plan;
    EXPECT_TRUE(has(plan, SIGUSR1) && has(plan, SIGUSR2)) << kind;
    ASSERT_TRUE(plan.scheduler_job.has_value()) << kind;
  }
  EXPECT_FALSE(has(Fit("batch", {"--forward-signals=USR1"}).plan, SIGUSR1));
  EXPECT_TRUE(has(Fit("step", {"--standalone"}).plan, SIGUSR1));
  EXPECT_FALSE(has(FitIn({}, {}).plan, SIGUSR1));
}

TEST(SlurmPlanTest, TasksOfAStepSpeakOnce) {
  EXPECT_FALSE(IsToldByFirstTask(Recorded("batch")));
  Environment step = Recorded("step");
  step["SLURM_PROCID"] = "0";
  step["SLURM_NODEID"] = "0";
  EXPECT_FALSE(IsToldByFirstTask(step));
  step["SLURM_PROCID"] = step["SLURM_NODEID"] = "1";
  EXPECT_TRUE(IsToldByFirstTask(step));
  EXPECT_TRUE(Fit("step").plan.shares_console);
  EXPECT_FALSE(Fit("step", {"--rdzv-endpoint=h:1"}).plan.shares_console);
  EXPECT_FALSE(Fit("batch").plan.shares_console);
}

TEST(SlurmPlanTest, JobIsTheAllocations) {
  EXPECT_EQ(Fit("requeued_batch").plan.scheduler_job->restarts, 1);
  const LaunchPlan array = Fit("batch_of_array").plan;
  EXPECT_THAT(array.scheduler_job->name, HasSubstr("_"));
  EXPECT_EQ(Fit("batch_of_heterogeneous_job").plan.scheduler_job->nodes.size(), 3);
}

TEST(SlurmPlanTest, StepIsNotBoundByWhatTheJobsTasksWere) {
  Environment batch = Recorded("batch_of_unequal_nodes");
  batch["SLURM_SRUN_REDUCE_TASK_EXIT_MSG"] = "1";
  const Environment given = SrunEnvironment(batch, "h:1", "id", "t");
  for (const char* name : {"SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
                           "SLURM_SRUN_REDUCE_TASK_EXIT_MSG"}) {
    EXPECT_FALSE(given.contains(name)) << name;
  }
  EXPECT_TRUE(given.contains("SLURM_JOB_ID"));
  EXPECT_EQ(given.at("FSDPRUN_TOKEN"), "t");
}

std::vector<std::string> NamesOf(const Environment& environment) {
  std::vector<std::string> names;
  for (const auto& [name, value] : environment) {
    names.push_back(name);
  }
  return names;
}

TEST(SlurmPlanTest, WorkersSeeTheJobButNotTheLaunchersTask) {
  Environment environment = Recorded("step_of_array");
  for (const char* name : {"PMI_RANK", "PMI2_RANK", "PMIX_RANK", "SLURM_TMPDIR", "SLURM_CONF",
                           "SLURM_CPU_BIND_TYPE", "SLURM_NTASKS_PER_NODE", kEnvSlurmRunId}) {
    environment[name] = "1";
  }
  environment[kEnvSlurmCoordinators] = "h:1";
  EXPECT_THAT(
      NamesOf(WorkerEnvironment(environment, Fit("step").plan)),
      UnorderedElementsAre(
          "SLURMD_NODENAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_ID",
          "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP",
          "SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURM_CPUS_ON_NODE", "SLURM_JOBID",
          "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_GID", "SLURM_JOB_ID", "SLURM_JOB_NAME",
          "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_JOB_UID",
          "SLURM_JOB_USER", "SLURM_NNODES", "SLURM_NODELIST", "SLURM_NODE_ALIASES",
          "SLURM_PRIO_PROCESS", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_TMPDIR",
          "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN", "SLURM_UMASK"));
}

TEST(SlurmPlanTest, WorkersSeeWhatTheJobAskedForButNotSrun) {
  Environment batch{{"SLURM_CPUS_PER_TASK", "4"}, {"SLURM_GPUS_PER_TASK", "1"}};
  const Environment given = SrunEnvironment(batch, "h:1", "id", "t");
  EXPECT_THAT(NamesOf(given), Not(Contains(StartsWith("SLURM_"))));
  batch["FSDPRUN_TOKEN"] = "t";
  EXPECT_EQ(WorkerEnvironment(given, Fit("step").plan), batch);
}

TEST(SlurmPlanTest, WorkersKeepTheTaskWhereItIsAskedFor) {
  Environment environment = Recorded("step");
  environment["PMI_RANK"] = "1";
  const Environment kept = WorkerEnvironment(environment, Fit("step", {"--keep-slurm-env"}).plan);
  EXPECT_EQ(kept, environment);
}

TEST(SlurmPlanTest, WorkersKeepEverythingWhereNoPlaceIsSlurms) {
  for (const char* kind : {"batch", "batch_of_array", "step"}) {
    for (const char* arg : {"--standalone", "--nnodes=1", "--rdzv-endpoint=h:29500"}) {
      Environment environment = Recorded(kind);
      environment["PMI_RANK"] = "1";
      EXPECT_EQ(WorkerEnvironment(environment, Fit(kind, {arg}).plan), environment) << arg;
    }
  }
  const Environment alone = Recorded("batch_of_array");
  EXPECT_EQ(WorkerEnvironment(alone, FitIn(alone, {}).plan), alone);
  const Environment mpi{{"PMI_RANK", "1"}, {"PMIX_RANK", "1"}};
  EXPECT_EQ(WorkerEnvironment(mpi, FitIn(mpi, {}).plan), mpi);
}

TEST(SlurmPlanTest, NoWorkerSeesWhereTheShellIs) {
  const Environment environment{{kEnvSlurmCoordinators, "h:1"}, {kEnvSlurmRunId, "x"}, {"A", "1"}};
  EXPECT_EQ(WorkerEnvironment(environment, LaunchPlan()), (Environment{{"A", "1"}}));
}

}  // namespace
}  // namespace fsdprun
