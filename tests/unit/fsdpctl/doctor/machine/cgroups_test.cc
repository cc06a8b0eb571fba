#include "fsdpctl/doctor/machine/cgroups.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun::doctor {
namespace {

class CgroupsTest : public ::testing::Test {
 protected:
  CgroupsTest() {
    std::string name = ::testing::TempDir() + "cgroups-XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~CgroupsTest() override { RemoveFolder(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  std::string root_;
};

constexpr char kUnified[] = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw";

TEST_F(CgroupsTest, NothingIsKnown) {
  const CgroupLimits limits = ReadCgroups(root_);
  EXPECT_FALSE(limits.memory.has_value());
  EXPECT_FALSE(limits.cpus.has_value());
  EXPECT_FALSE(limits.pids.has_value());
}

TEST_F(CgroupsTest, OfVersion2TheLowestOfThoseAboveCounts) {
  Write("/proc/self/mountinfo", kUnified);
  Write("/proc/self/cgroup", "0::/slurm/job");
  Write("/sys/fs/cgroup/slurm/memory.max", "1000");
  Write("/sys/fs/cgroup/slurm/memory.current", "700");
  Write("/sys/fs/cgroup/slurm/memory.stat", "anon 5\ninactive_file 200");
  Write("/sys/fs/cgroup/slurm/job/memory.max", "max");
  Write("/sys/fs/cgroup/slurm/job/cpu.max", "400000 100000");
  Write("/sys/fs/cgroup/slurm/cpu.max", "max 100000");
  Write("/sys/fs/cgroup/slurm/pids.max", "500");
  Write("/sys/fs/cgroup/slurm/pids.current", "450");
  Write("/sys/fs/cgroup/slurm/job/pids.max", "100");
  Write("/sys/fs/cgroup/slurm/job/pids.current", "10");
  const CgroupLimits limits = ReadCgroups(root_);
  EXPECT_EQ(limits.memory, 1000u);
  EXPECT_EQ(limits.memory_used, 500u);
  EXPECT_EQ(limits.cpus, 4.0);
  EXPECT_EQ(limits.pids, 500u);  // Of which 50 are left.
  EXPECT_EQ(limits.pids_used, 450u);
}

TEST_F(CgroupsTest, InAContainerThePathMayBeTheHosts) {
  Write("/proc/self/mountinfo", kUnified);
  Write("/proc/self/cgroup", "0::/docker/abc");
  Write("/sys/fs/cgroup/memory.max", "4096");
  EXPECT_EQ(ReadCgroups(root_).memory, 4096u);
}

TEST_F(CgroupsTest, Version1) {
  Write("/proc/self/mountinfo",
        "31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 20 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 20 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids");
  Write("/proc/self/cgroup", "4:memory:/job\n1:cpu,cpuacct:/docker/abc/step\n8:pids:/");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000");
  Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1500");
  Write("/sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 500");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("/sys/fs/cgroup/cpu,cpuacct/step/cpu.cfs_quota_us", "150000");
  Write("/sys/fs/cgroup/cpu,cpuacct/step/cpu.cfs_period_us", "100000");
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  Write("/sys/fs/cgroup/pids/pids.max", "max");
  const CgroupLimits limits = ReadCgroups(root_);
  EXPECT_EQ(limits.memory, 2000u);
  EXPECT_EQ(limits.memory_used, 1000u);
  EXPECT_EQ(limits.cpus, 1.5);
  EXPECT_FALSE(limits.pids.has_value());
}

}  // namespace
}  // namespace fsdprun::doctor
