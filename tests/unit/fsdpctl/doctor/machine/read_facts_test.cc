#include "fsdpctl/doctor/machine/read_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun::doctor {
namespace {

class ReadFactsTest : public ::testing::Test {
 protected:
  ReadFactsTest() {
    std::string name = ::testing::TempDir() + "facts-XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~ReadFactsTest() override { RemoveFolder(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  std::string root_;
};

TEST_F(ReadFactsTest, MemoryOfAMadeUpMachine) {
  Write("/proc/meminfo",
        "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\nSwapTotal: 30 kB\n"
        "SwapFree: 10 kB");
  Write("/proc/self/oom_score_adj", "500");
  Write("/proc/sys/vm/overcommit_memory", "2");
  const MemoryFacts facts = ReadMemory(root_);
  EXPECT_EQ(facts.total, 1000u * 1024);
  EXPECT_EQ(facts.available, 400u * 1024);
  EXPECT_EQ(facts.swap_free, 10u * 1024);
  EXPECT_EQ(facts.oom_score_adj, 500);
  EXPECT_EQ(facts.overcommit, 2);
  EXPECT_EQ(facts.max_map_count, 0u);
}

TEST_F(ReadFactsTest, LimitsOfThisProcess) {
  Write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000");
  Write("/sys/class/infiniband/mlx5_0/node_guid", "1");
  EXPECT_FALSE(ReadLimits(root_).has_rdma) << "programs cannot use it";
  Write("/dev/infiniband/uverbs2", "");
  EXPECT_FALSE(ReadLimits(root_).has_rdma) << "there is no GPU";
  Write("/dev/nvidia0", "");
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const LimitFacts facts = ReadLimits(root_);
  EXPECT_EQ(facts.open_files.soft.value_or(RLIM_INFINITY), limit.rlim_cur);
  EXPECT_TRUE(facts.may_lock_memory);
  EXPECT_TRUE(facts.has_rdma);
}

TEST_F(ReadFactsTest, GpusAndCardsOfAMadeUpMachine) {
  Write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de");
  Write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200");
  Write("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de");
  Write("/sys/bus/pci/devices/0000:02:00.0/class", "0x068000");  // A switch.
  const GpuFacts without = ReadGpus(root_, {});
  EXPECT_EQ(without.on_bus, 1);
  EXPECT_THAT(without.bus_drivers, ::testing::IsEmpty());
  std::filesystem::create_symlink("../../../bus/pci/drivers/nouveau",
                                  root_ + "/sys/bus/pci/devices/0000:01:00.0/driver");
  EXPECT_THAT(ReadGpus(root_, {}).bus_drivers, ::testing::ElementsAre("nouveau"));
  EXPECT_FALSE(without.has_driver);
  EXPECT_EQ(without.nvml, NvmlState::kNotAsked);
  Write("/proc/driver/nvidia/version", "NVRM");
  Write("/dev/nvidia0", "");
  Write("/dev/nvidiactl", "");
  Write("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  Write("/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  Write("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet");
  const GpuFacts with = ReadGpus(root_, {{"CUDA_VISIBLE_DEVICES", "0"}});
  EXPECT_EQ(with.device_nodes, 1);
  EXPECT_TRUE(with.has_control_node);
  EXPECT_FALSE(with.has_uvm_node);
  EXPECT_EQ(with.nvml, NvmlState::kAnswered);
  EXPECT_EQ(with.visible, "0");
  const NcclFacts nccl = ReadNccl(root_, {});
  ASSERT_EQ(nccl.rdma.size(), 1u);
  EXPECT_EQ(nccl.rdma[0].state, "4: ACTIVE");
  EXPECT_EQ(nccl.rdma[0].link_layer, "Ethernet");
  EXPECT_FALSE(nccl.has_rdma_nodes);
  Write("/dev/infiniband/rdma_cm", "");
  EXPECT_FALSE(ReadNccl(root_, {}).has_rdma_nodes);
  Write("/dev/infiniband/uverbs3", "");
  EXPECT_TRUE(ReadNccl(root_, {}).has_rdma_nodes);
}

TEST_F(ReadFactsTest, Folders) {
  const FolderFacts good = ReadFolder(root_);
  EXPECT_EQ(good.error, 0);
  EXPECT_TRUE(good.is_writable);
  EXPECT_GT(good.total, 0u);
  EXPECT_EQ(ReadFolder(root_ + "/none").error, ENOENT);
  Write("/file", "");
  EXPECT_EQ(ReadFolder(root_ + "/file").error, ENOTDIR);
}

TEST_F(ReadFactsTest, AFolderThatWillBeMadeIsJudgedByWhereItWillBe) {
  const FolderFacts there = ReadFolderToMake(root_);
  EXPECT_EQ(there.error, 0);
  EXPECT_EQ(there.made_in, "");
  const FolderFacts none = ReadFolderToMake(root_ + "/none/at//all/");
  EXPECT_EQ(none.error, 0);
  EXPECT_EQ(none.path, root_ + "/none/at//all/");
  EXPECT_EQ(none.made_in, root_);
  EXPECT_TRUE(none.is_writable);
  EXPECT_GT(none.total, 0u);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/none"));
  EXPECT_EQ(ReadFolderToMake("not-there/logs").made_in, ".");
  Write("/file", "");
  EXPECT_EQ(ReadFolderToMake(root_ + "/file/logs").error, ENOTDIR);
  std::filesystem::create_symlink(root_ + "/gone", root_ + "/link");
  EXPECT_EQ(ReadFolderToMake(root_ + "/link").error, ENOENT);
}

TEST_F(ReadFactsTest, PrivateFolderIsNotMade) {
  const Environment environment{{"XDG_RUNTIME_DIR", root_}, {"TMPDIR", root_}};
  StorageFacts facts = ReadStorage("", environment);
  EXPECT_FALSE(facts.runtime_exists);
  EXPECT_TRUE(facts.runtime.is_writable);
  EXPECT_EQ(facts.temporary.path, root_);
  EXPECT_FALSE(std::filesystem::exists(facts.runtime_path));
  ASSERT_EQ(::mkdir(facts.runtime_path.c_str(), 0700), 0);
  facts = ReadStorage(root_, environment);
  EXPECT_TRUE(facts.runtime_exists);
  EXPECT_TRUE(facts.runtime_is_private);
  EXPECT_TRUE(facts.logs.has_value());
  ASSERT_EQ(::chmod(facts.runtime_path.c_str(), 0755), 0);
  EXPECT_FALSE(ReadStorage("", environment).runtime_is_private);
}

TEST_F(ReadFactsTest, NoSecretIsMade) {
  const Environment environment{{"HOME", root_}};
  InstallationFacts facts = ReadInstallation({}, environment);
  EXPECT_EQ(facts.secret_path, root_ + "/.config/fsdprun/secret");
  EXPECT_FALSE(facts.has_secret);
  EXPECT_TRUE(facts.secret_error.empty()) << facts.secret_error;
  EXPECT_FALSE(std::filesystem::exists(root_ + "/.config"));
  Write("/.config/fsdprun/secret", std::string(64, 'a'));
  ASSERT_EQ(::chmod(facts.secret_path.c_str(), 0644), 0);
  facts = ReadInstallation({}, environment);
  EXPECT_TRUE(facts.has_secret);
  EXPECT_NE(facts.secret_error.find("other users"), std::string::npos);
}

TEST_F(ReadFactsTest, Network) {
  const NetworkFacts facts = ReadNetwork({.is_left_alone = true});
  EXPECT_FALSE(facts.host_name.empty());
  EXPECT_TRUE(facts.port_is_unknown);
  EXPECT_LT(facts.first_ephemeral, facts.last_ephemeral);
  bool has_loopback = false;
  for (const InterfaceFacts& each : facts.interfaces) {
    has_loopback |= each.is_loopback && each.mtu > 0;
  }
  EXPECT_TRUE(has_loopback);
}

}  // namespace
}  // namespace fsdprun::doctor
