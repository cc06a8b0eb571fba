#include "launcher/run/worker_cpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/run/machine.h"
#include "tests/unit/launcher/run/machine_tree.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(WorkerCpusTest, ThisProcessMayUseSomeCpu) {
  EXPECT_GE(UsableCpus("").size(), 1u);
  const Environment none;
  EXPECT_EQ(DetectMachine(none).usable_cpus, static_cast<int>(UsableCpus("").size()));
}

TEST(WorkerCpusTest, ReadsWhereCpusAre) {
  const MachineTree tree;
  tree.Write("sys/devices/system/node/node0/cpulist", "0,2\n");
  tree.Write("sys/devices/system/node/node3/cpulist", "1,3\n");
  tree.Write("sys/devices/system/node/online", "0,3\n");
  const std::string cpu = "sys/devices/system/cpu/cpu3/";
  tree.Write(cpu + "topology/physical_package_id", "1\n");
  tree.Write(cpu + "topology/thread_siblings_list", "1,3\n");
  for (const auto& [index, level, type, shared] :
       {std::tuple("0", "1", "Data", "3"), std::tuple("1", "1", "Instruction", "0-3"),
        std::tuple("2", "3", "Unified", "2-3"), std::tuple("3", "4", "Instruction", "0-3")}) {
    const std::string cache = cpu + "cache/index" + index + "/";
    tree.Write(cache + "level", level);
    tree.Write(cache + "type", type);
    tree.Write(cache + "shared_cpu_list", shared);
  }
  const CpuTopology topology = ReadTopology(tree.root(), {2, 3});
  ASSERT_EQ(topology.size(), 2u);
  const CpuPlace& known = topology.at(3);
  EXPECT_THAT((std::vector<int>{known.node, known.socket, known.core, known.complex}),
              ElementsAre(3, 1, 1, 2));
  const CpuPlace& bare = topology.at(2);
  EXPECT_THAT((std::vector<int>{bare.node, bare.socket, bare.core}), ElementsAre(0, 0, 2));
}

TEST(WorkerCpusTest, TheKernelsFilesDecide) {
  const MachineTree tree;
  tree.Write("proc/self/status", "Cpus_allowed:\t3\nCpus_allowed_list:\t0-3,8\n");
  tree.Write("sys/devices/system/node/node0/cpulist", "0-1");
  tree.Write("sys/devices/system/node/node1/cpulist", "2-3,8");
  const Environment environment = {{"FSDPRUN_TEST_ROOT", tree.root()}};
  EXPECT_EQ(DetectMachine(environment).usable_cpus, 5);
  LaunchPlan plan;
  plan.nproc_per_node = 2;
  EXPECT_TRUE(WorkerCpus(plan, environment).value().empty());
  plan.numa_binding = NumaBinding::kNode;
  EXPECT_THAT(WorkerCpus(plan, environment).value(),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 8)));
  EXPECT_EQ(DescribeWorkerCpus(WorkerCpus(plan, environment).value()), "worker_cpus: 0-1 2-3,8\n");
  tree.AddNvidia("0000:01:00.0", 0, "GPU-aa", "1");
  EXPECT_THAT(std::string(WorkerCpus(plan, environment).status().message()),
              HasSubstr("--numa-binding node: local rank 1 has no GPU"));
  plan.nproc_per_node = 1;
  EXPECT_THAT(WorkerCpus(plan, environment).value(), ElementsAre(ElementsAre(2, 3, 8)));
}

}  // namespace
}  // namespace fsdprun
