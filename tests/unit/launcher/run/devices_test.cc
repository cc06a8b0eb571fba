#include "launcher/run/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/run/machine_tree.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(DevicesTest, VisibleGpusAreThoseThatCudaShows) {
  EXPECT_EQ(VisibleGpus(8, "0,1,5"), 3);
  EXPECT_EQ(VisibleGpus(8, " 3 "), 1);
  EXPECT_EQ(VisibleGpus(8, "0,-1,1"), 1);
  EXPECT_EQ(VisibleGpus(8, "-1"), 0);
  EXPECT_EQ(VisibleGpus(8, ""), 0);
  EXPECT_EQ(VisibleGpus(2, "1,2,0"), 1);
  EXPECT_EQ(VisibleGpus(8, "GPU-8932f937,MIG-1"), 2);
  EXPECT_EQ(VisibleGpus(0, "GPU-8932f937"), 0);
}

// Two NVIDIA GPUs on node 1 and one on node 0, whose address is between theirs.
MachineTree NvidiaMachine() {
  MachineTree tree;
  tree.AddNvidia("0000:81:00.0", 0, "GPU-aa", "1");
  tree.AddNvidia("0000:c1:00.0", 1, "GPU-bb", "0");
  tree.AddNvidia("0001:01:00.0", 2, "GPU-cc", "1");
  tree.Write("dev/nvidiactl", "");
  tree.Write("dev/nvidia-uvm", "");
  return tree;
}

TEST(DevicesTest, CountsDevicesOfNvidia) {
  const MachineTree tree = NvidiaMachine();
  EXPECT_EQ(CountGpus(tree.root(), {}), 3);
  EXPECT_EQ(CountGpus(tree.root(), {{"CUDA_VISIBLE_DEVICES", "2,0"}}), 2);
  EXPECT_EQ(CountGpus(tree.root(), {{"CUDA_VISIBLE_DEVICES", ""}}), 0);
  EXPECT_EQ(CountGpus(MachineTree().root(), {}), 0);
}

TEST(DevicesTest, NodesOfNvidiaGpusAsCudaNumbersThem) {
  const MachineTree tree = NvidiaMachine();
  const auto nodes = [&tree](const char* list) {
    return NumaNodesOfGpus(tree.root(), {{"CUDA_VISIBLE_DEVICES", list}});
  };
  EXPECT_THAT(NumaNodesOfGpus(tree.root(), {}).value(), ElementsAre(1, 0, 1));
  EXPECT_THAT(nodes("1,0").value(), ElementsAre(0, 1));
  EXPECT_THAT(nodes("GPU-bb, 2").value(), ElementsAre(0, 1));
  EXPECT_THAT(nodes("0,7,1").value(), ElementsAre(1));
  EXPECT_THAT(nodes("").value(), IsEmpty());
  EXPECT_THAT(std::string(nodes("MIG-1").status().message()), HasSubstr("'MIG-1'"));
}

TEST(DevicesTest, AContainersGpusAreThoseInDev) {
  MachineTree tree = NvidiaMachine();
  tree.Remove("dev/nvidia0");
  EXPECT_EQ(CountGpus(tree.root(), {}), 2);
  EXPECT_THAT(NumaNodesOfGpus(tree.root(), {}).value(), ElementsAre(0, 1));
}

TEST(DevicesTest, AGpuWithoutANodeIsOnTheOnlyOne) {
  MachineTree tree;
  tree.AddNvidia("0000:01:00.0", 0, "GPU-aa", "-1\n");
  EXPECT_THAT(NumaNodesOfGpus(tree.root(), {}).value(), ElementsAre(0));
}

TEST(DevicesTest, AGpuWhosePlaceIsUnknownIsAnError) {
  MachineTree tree = NvidiaMachine();
  tree.Remove("sys/bus/pci/devices/0000:c1:00.0/numa_node");
  EXPECT_THAT(std::string(NumaNodesOfGpus(tree.root(), {}).status().message()),
              HasSubstr("0000:c1:00.0/numa_node"));
  tree.Remove("proc");
  EXPECT_THAT(std::string(NumaNodesOfGpus(tree.root(), {}).status().message()),
              HasSubstr("/proc/driver/nvidia/gpus"));
}

TEST(DevicesTest, GpusOfRocm) {
  MachineTree tree;
  tree.Write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n");
  tree.Write("sys/class/kfd/kfd/topology/nodes/2/properties",
             "simd_count 304\nlocation_id 49408\ndomain 1\nunique_id 11\n");
  tree.Write("sys/class/kfd/kfd/topology/nodes/10/properties",
             "simd_count 304\nlocation_id 33024\ndomain 0\nunique_id 27\n");
  tree.Write("sys/bus/pci/devices/0001:c1:00.0/numa_node", "3");
  tree.Write("sys/bus/pci/devices/0000:81:00.0/numa_node", "2");
  EXPECT_EQ(CountGpus(tree.root(), {}), 2);
  EXPECT_EQ(CountGpus(tree.root(), {{"HIP_VISIBLE_DEVICES", "1"}, {"CUDA_VISIBLE_DEVICES", "0,1"}}),
            1);
  EXPECT_EQ(CountGpus(tree.root(), {{"ROCR_VISIBLE_DEVICES", "1"}}), 1);
  EXPECT_THAT(NumaNodesOfGpus(tree.root(), {}).value(), ElementsAre(3, 2));
  EXPECT_THAT(NumaNodesOfGpus(tree.root(), {{"HIP_VISIBLE_DEVICES", "1"}}).value(), ElementsAre(2));
  EXPECT_THAT(NumaNodesOfGpus(tree.root(), {{"ROCR_VISIBLE_DEVICES", "GPU-1b,0"}}).value(),
              ElementsAre(2, 3));
}

TEST(DevicesTest, IntelGpusHaveARenderNode) {
  MachineTree tree;
  tree.Write("sys/class/drm/renderD128/device/vendor", "0x8086\n");
  tree.Write("sys/class/drm/renderD129/device/vendor", "0x8086\n");
  tree.Write("sys/class/drm/renderD130/device/vendor", "0x10de\n");
  tree.Write("sys/class/drm/card0/device/vendor", "0x8086\n");
  const auto count = [&tree](const Environment& environment) {
    return CountIntelGpus(tree.root(), environment, IntelGpus::kAll);
  };
  EXPECT_EQ(count({}), 2);
  EXPECT_EQ(count({{"ZE_AFFINITY_MASK", "1"}}), 1);
  EXPECT_EQ(count({{"ZE_AFFINITY_MASK", ""}}), 2);
  EXPECT_EQ(CountGpus(tree.root(), {}), 0);
  tree.Write("sys/devices/0000:00:02.0/vendor", "0x8086\n");
  std::filesystem::create_directories(tree.root() + "/sys/class/drm/renderD131");
  std::filesystem::create_symlink("../../../devices/0000:00:02.0",
                                  tree.root() + "/sys/class/drm/renderD131/device");
  EXPECT_EQ(count({}), 3);
  EXPECT_EQ(CountIntelGpus(tree.root(), {}, IntelGpus::kDiscrete), 2);
}

}  // namespace
}  // namespace fsdprun
