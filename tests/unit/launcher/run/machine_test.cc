#include "launcher/run/machine.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/base/remove_folder.h"
#include "tests/unit/launcher/run/machine_tree.h"

namespace fsdprun {
namespace {

class RunDirsTest : public ::testing::Test {
 protected:
  RunDirsTest() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~RunDirsTest() override {
    RemoveFolder(folder_);
    for (const std::string& vitals : vitals_) {
      RemoveFolder(vitals);
    }
  }
  RunDirs Make(const LaunchPlan& plan, const std::string& temporary = "") {
    const RunDirs dirs =
        MakeRunDirs(plan, "id", {{"TMPDIR", temporary.empty() ? folder_ : temporary}}).value();
    vitals_.push_back(dirs.vitals);
    return dirs;
  }

  std::string folder_ = ::testing::TempDir() + "run_dirs_XXXXXX";
  std::vector<std::string> vitals_;  // outside it
};

TEST_F(RunDirsTest, LogsAreTemporaryUnlessTheUserNamesAPlace) {
  LaunchPlan plan;
  const RunDirs temporary = Make(plan);
  EXPECT_EQ(temporary.logs.find(folder_ + "/fsdprun_id_"), 0u);
  EXPECT_EQ(temporary.spool, "");
  struct stat info {};
  ASSERT_EQ(::stat(temporary.logs.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  plan.log_dir = folder_ + "/deep/logs";
  EXPECT_EQ(Make(plan).logs.find(folder_ + "/deep/logs/id_"), 0u);
}

TEST_F(RunDirsTest, WhatIsShownAndNotKeptIsSpooled) {
  LaunchPlan plan;
  plan.output.names_files = true;
  plan.output.redirects.of_all = kOutStream;
  EXPECT_EQ(Make(plan).spool.find(folder_ + "/fsdprun_spool_id_"), 0u);
  plan.output.redirects.of_all = kBothStreams;
  EXPECT_EQ(Make(plan).spool, "");
  plan.output.has_directory = false;
  const RunDirs dirs = Make(plan);
  EXPECT_EQ(dirs.logs, "");
  EXPECT_TRUE(std::filesystem::is_directory(dirs.spool));
}

TEST_F(RunDirsTest, VitalsAreInMemory) {
  const std::string vitals = Make(LaunchPlan()).vitals;
  EXPECT_EQ(vitals.find("/dev/shm/fsdprun_vitals_id_"), 0u) << vitals;
  struct stat info {};
  ASSERT_EQ(::stat(vitals.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(RunDirsTest, OnlyASpoolMayBeMissing) {
  LaunchPlan plan;
  EXPECT_FALSE(MakeRunDirs(plan, "id", {{"TMPDIR", "/proc/nowhere"}}).ok());
  plan.output.has_directory = false;
  EXPECT_EQ(Make(plan, "/proc/nowhere").spool, "");
}

TEST(MachineTest, ThreadsOfOneCoreCountOnce) {
  const MachineTree machine;
  EXPECT_EQ(CountPhysicalCores(machine.root()), 0) << "not known";
  const std::string cpus = "sys/devices/system/cpu/";
  for (const auto& [cpu, siblings] : {std::pair("cpu0", "0,2"), std::pair("cpu2", "0,2")}) {
    machine.Write(cpus + cpu + "/topology/core_cpus_list", siblings);
  }
  // As older kernels have it.
  machine.Write(cpus + "cpu1/topology/thread_siblings_list", "1");
  machine.Write(cpus + "cpufreq/policy0", "");
  EXPECT_EQ(CountPhysicalCores(machine.root()), 2);
}

}  // namespace
}  // namespace fsdprun
