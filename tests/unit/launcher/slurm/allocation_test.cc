#include "launcher/slurm/allocation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/slurm/recorded.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SlurmAllocation Read(const std::string& kind) {
  const auto allocation = ReadAllocation(Recorded(kind));
  EXPECT_TRUE(allocation.ok()) << allocation.status();
  return allocation.ok() && allocation->has_value() ? **allocation : SlurmAllocation{};
}

std::string Wrong(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return std::string(ReadAllocation(environment).status().message());
}

TEST(AllocationTest, NoneOutsideOfSlurm) {
  EXPECT_EQ(*ReadAllocation({}), std::nullopt);
  EXPECT_EQ(*ReadAllocation({{"SLURM_JOB_ID", ""}, {"SLURM_CONF", "/etc/slurm.conf"}}),
            std::nullopt);
}

TEST(AllocationTest, BatchShellIsNoTask) {
  const SlurmAllocation batch = Read("batch");
  EXPECT_EQ(batch.task, std::nullopt);
  EXPECT_EQ(batch.node_name, "node1");
  EXPECT_THAT(batch.Nodes(), ElementsAre("node1", "node2"));
  EXPECT_EQ(batch.restart_count, 0);
  EXPECT_EQ(batch.cpus_per_task, std::nullopt);
  EXPECT_EQ(batch.end_time, std::nullopt);
  EXPECT_EQ(batch.cluster, "test");
  EXPECT_EQ(batch.JobName(), std::to_string(batch.job_id));
  EXPECT_EQ(Read("batch_of_unequal_nodes").cpus_per_task, 2);
}

TEST(AllocationTest, ShellOfSallocIsNoTask) {
  EXPECT_EQ(Read("salloc").task, std::nullopt);
  EXPECT_THAT(Read("salloc").node_name, IsEmpty());
  EXPECT_THAT(Read("salloc").Nodes(), ElementsAre("node1", "node2", "node3"));
  // It has the number of a step, and a task's variables.
  EXPECT_EQ(Read("salloc_interactive_step").task, std::nullopt);
  EXPECT_EQ(Read("salloc_interactive_step").node_name, "node1");
  EXPECT_THAT(Read("salloc_interactive_step").Nodes(), ElementsAre("node1", "node2", "node3"));
}

TEST(AllocationTest, TaskKnowsItsPlaceInTheStep) {
  const SlurmAllocation step = Read("step");
  EXPECT_EQ(step.task, (SlurmTask{.step_id = 0,
                                  .nodes = {"node1", "node2"},
                                  .tasks_per_node = {1, 1},
                                  .tasks = 2,
                                  .rank = 1,
                                  .node = 1,
                                  .local_rank = 0,
                                  .launch_address = "127.0.0.1"}));
  EXPECT_EQ(step.node_name, "node2");
  EXPECT_EQ(Read("srun_alone").task->rank, 1);
}

TEST(AllocationTest, TasksOfUnequalNodes) {
  const SlurmAllocation several = Read("step_of_several_tasks");
  EXPECT_THAT(several.task->tasks_per_node, ElementsAre(2, 2, 1));
  EXPECT_EQ(several.task->rank, 4);
  EXPECT_EQ(several.task->node, 2);
  EXPECT_EQ(several.task->local_rank, 0);
}

TEST(AllocationTest, StepMayHaveFewerNodesThanItsJob) {
  const SlurmAllocation second = Read("second_step_on_one_node");
  EXPECT_EQ(second.task->step_id, 1U);
  EXPECT_THAT(second.Nodes(), ElementsAre("node2"));
  EXPECT_EQ(second.task->node, 0);
  EXPECT_EQ(second.task->local_rank, 1);
}

TEST(AllocationTest, MembersOfAnArray) {
  EXPECT_EQ(Read("batch_of_array").array_job_id, 5U);
  EXPECT_EQ(Read("batch_of_array").JobName(), "5_2");
  EXPECT_EQ(Read("batch_of_array").job_id, 7U);
  EXPECT_EQ(Read("step_of_array").JobName(), "5_2");
}

TEST(AllocationTest, HeterogeneousJobHasAllItsGroups) {
  const SlurmAllocation batch = Read("batch_of_heterogeneous_job");
  EXPECT_THAT(batch.groups,
              ElementsAre(SlurmGroup{8, {"node1"}}, SlurmGroup{9, {"node2", "node3"}}));
  EXPECT_THAT(batch.Nodes(), ElementsAre("node1", "node2", "node3"));
}

TEST(AllocationTest, StepOfAHeterogeneousJobHasTheNodesOfItsComponents) {
  const SlurmAllocation all = Read("step_of_heterogeneous_job");
  EXPECT_THAT(all.task->nodes, ElementsAre("node1", "node2", "node3"));
  EXPECT_THAT(all.task->tasks_per_node, ElementsAre(1, 2, 2));
  EXPECT_EQ(all.task->rank, 3);
  EXPECT_EQ(all.task->node, 2);
  EXPECT_THAT(Read("step_of_one_component").Nodes(), ElementsAre("node2", "node3"));
}

TEST(AllocationTest, RestartsAndTheEndOfTheTimeLimit) {
  EXPECT_EQ(Read("requeued_batch").restart_count, 1);
  Environment newer = Recorded("batch");
  newer["SLURM_JOB_END_TIME"] = "1795391383";
  EXPECT_EQ((*ReadAllocation(newer))->end_time, 1795391383);
}

TEST(AllocationTest, ErrorsNameTheVariable) {
  const Environment batch = Recorded("batch");
  const Environment step = Recorded("step");
  EXPECT_THAT(Wrong(batch, "SLURM_JOB_ID", "x"), HasSubstr("SLURM_JOB_ID='x'"));
  EXPECT_THAT(Wrong(batch, "SLURM_JOB_NODELIST", "n[1"),
              AllOf(HasSubstr("SLURM_JOB_NODELIST: 'n[1'"), HasSubstr("character 4")));
  EXPECT_THAT(Wrong(batch, "SLURM_JOB_NODELIST", ""), HasSubstr("SLURM_JOB_NODELIST=''"));
  EXPECT_THAT(Wrong(batch, "SLURM_JOB_NUM_NODES", "3"),
              AllOf(HasSubstr("SLURM_JOB_NUM_NODES='3'"), HasSubstr("has 2 nodes")));
  EXPECT_THAT(Wrong(batch, "SLURM_RESTART_COUNT", "-1"), HasSubstr("SLURM_RESTART_COUNT='-1'"));
  EXPECT_THAT(Wrong(step, "SLURM_STEP_TASKS_PER_NODE", "1(x3)"),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE='1(x3)'"));
  EXPECT_THAT(Wrong(step, "SLURM_STEP_TASKS_PER_NODE", ""),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE: ''"));
  EXPECT_THAT(Wrong(step, "SLURM_NODEID", "2"), HasSubstr("SLURM_NODEID='2'"));
  EXPECT_THAT(Wrong(step, "SLURM_LOCALID", "1"), HasSubstr("SLURM_LOCALID='1'"));
  EXPECT_THAT(Wrong(step, "SLURM_PROCID", "2"), HasSubstr("SLURM_PROCID='2'"));
  EXPECT_THAT(Wrong(step, "SLURM_PROCID", ""),
              AllOf(HasSubstr("SLURM_PROCID=''"), HasSubstr("unset SLURM_JOB_ID")));
  const Environment het = Recorded("batch_of_heterogeneous_job");
  EXPECT_THAT(Wrong(het, "SLURM_JOB_NODELIST_HET_GROUP_1", ""),
              HasSubstr("SLURM_JOB_NODELIST_HET_GROUP_1=''"));
  EXPECT_THAT(Wrong(het, "SLURM_HET_SIZE", "99999"), HasSubstr("SLURM_HET_SIZE='99999'"));
}

}  // namespace
}  // namespace fsdprun
