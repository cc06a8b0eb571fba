#include "launcher/run/numa_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "launcher/run/cpu_list.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// torchrun's own code is asked about many machines by tests/integration/launcher/test_numa.py.

/// Two sockets with two nodes each, four cores of two threads on each node; each two cores share a
/// cache. Core n has the CPUs n and n + 16.
CpuTopology TwoSockets() {
  CpuTopology topology;
  for (int core = 0; core < 16; ++core) {
    const CpuPlace place{
        .node = core / 4, .socket = core / 8, .core = core, .complex = core / 2 * 2};
    topology[core] = place;
    topology[core + 16] = place;
  }
  return topology;
}

std::vector<std::string> Texts(const absl::StatusOr<std::vector<std::vector<int>>>& cpus) {
  std::vector<std::string> texts;
  if (!cpus.ok()) {
    return {std::string(cpus.status().message())};
  }
  for (const std::vector<int>& of_worker : *cpus) {
    texts.push_back(CpuListText(of_worker));
  }
  return texts;
}

TEST(NumaBindingTest, GpusTakeTheCpusNearThem) {
  const CpuTopology topology = TwoSockets();
  const std::vector<int> gpus = {3, 1, 1, 0};
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kNode, 4, gpus)),
              ElementsAre("12-15,28-31", "4-7,20-23", "4-7,20-23", "0-3,16-19"));
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kSocket, 2, gpus)),
              ElementsAre("8-15,24-31", "0-7,16-23"));
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kExclusive, 3, gpus)),
              ElementsAre("12-15,28-31", "4-5,20-21", "6-7,22-23"));
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kCoreComplex, 4, gpus)),
              ElementsAre("12-13,28-29", "4-5,20-21", "6-7,22-23", "0-1,16-17"));
}

TEST(NumaBindingTest, TheFirstGpusGetTheCoresThatAreLeft) {
  EXPECT_THAT(Texts(BindCpus(TwoSockets(), NumaBinding::kExclusive, 3, {2, 2, 2})),
              ElementsAre("8-9,24-25", "10,26", "11,27"));
}

// Those of GPUs that no worker uses stay free, as in torchrun.
TEST(NumaBindingTest, UnusedGpusKeepTheirShare) {
  EXPECT_THAT(Texts(BindCpus(TwoSockets(), NumaBinding::kExclusive, 1, {0, 0})),
              ElementsAre("0-1,16-17"));
}

TEST(NumaBindingTest, OnlyUsableCpusCount) {
  CpuTopology topology = TwoSockets();
  for (const int cpu : {0, 2, 3, 18, 19}) {
    topology.erase(cpu);
  }
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kNode, 1, {0})), ElementsAre("1,16-17"));
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kExclusive, 2, {0, 0})),
              ElementsAre("16", "1,17"));
  topology.erase(4);
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kCoreComplex, 2, {1, 1})),
              ElementsAre("6-7,22-23", "5,20-21"))
      << "the larger one first";
}

TEST(NumaBindingTest, MoreWorkersThanComplexesShareThem) {
  EXPECT_THAT(Texts(BindCpus(TwoSockets(), NumaBinding::kCoreComplex, 3, {0, 0, 0})),
              ElementsAre("0-1,16-17", "2-3,18-19", "0-1,16-17"));
}

TEST(NumaBindingTest, WithoutGpusWorkersShareTheMachine) {
  const CpuTopology topology = TwoSockets();
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kNode, 4, {})),
              ElementsAre("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"));
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kSocket, 2, {})),
              ElementsAre("0-7,16-23", "8-15,24-31"));
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kExclusive, 6, {})),
              ElementsAre("0-1,16-17", "2-3,18-19", "4-7,20-23", "8-9,24-25", "10-11,26-27",
                          "12-15,28-31"));
}

TEST(NumaBindingTest, WithoutGpusANodeWithFewCoresGetsFewWorkers) {
  CpuTopology topology;
  for (int core = 0; core < 10; ++core) {
    topology[core] = {.node = core < 8 ? 0 : 1, .socket = 0, .core = core, .complex = 0};
  }
  EXPECT_THAT(Texts(BindCpus(topology, NumaBinding::kExclusive, 5, {})),
              ElementsAre("0-1", "2-3", "4-5", "6-7", "8-9"));
}

TEST(NumaBindingTest, SaysWhatCannotBeDone) {
  const CpuTopology topology = TwoSockets();
  const auto error = [&](NumaBinding binding, int workers, const std::vector<int>& gpus) {
    return Texts(BindCpus(topology, binding, workers, gpus)).front();
  };
  EXPECT_EQ(error(NumaBinding::kNode, 3, {0, 1}),
            "--numa-binding node: local rank 2 has no GPU: 2 are visible for 3 workers");
  EXPECT_THAT(error(NumaBinding::kSocket, 1, {7}), HasSubstr("GPU 0 is on NUMA node 7"));
  EXPECT_THAT(error(NumaBinding::kExclusive, 1, std::vector<int>(5, 2)),
              HasSubstr("NUMA node 2 has 4 usable cores for 5 GPUs"));
  EXPECT_THAT(error(NumaBinding::kExclusive, 17, {}), HasSubstr("for 5 workers"));
}

TEST(CpuListTest, IsTheKernelsForm) {
  EXPECT_EQ(ParseCpuList("0-2,4,6-7\n"), (std::vector<int>{0, 1, 2, 4, 6, 7}));
  EXPECT_EQ(ParseCpuList("7,1-2, 2"), (std::vector<int>{1, 2, 7}));
  EXPECT_EQ(ParseCpuList("\n"), std::vector<int>());
  for (const char* wrong : {"a", "3-1", "1-2-3", "-1", "0-99999999", "1,x"}) {
    EXPECT_EQ(ParseCpuList(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(CpuListText({0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
  EXPECT_EQ(CpuListText({}), "");
}

}  // namespace
}  // namespace fsdprun
