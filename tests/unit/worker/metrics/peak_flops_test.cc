#include "worker/metrics/peak_flops.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace fsdprun::worker {
namespace {

TEST(PeakFlopsTest, MoreSpecialNamesCountBeforeOthers) {
  EXPECT_EQ(PeakFlopsOf("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA H200"), 989e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA H200 NVL"), 835e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA L40S"), 362e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA L4"), 121e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA A10G"), 70e12);
  EXPECT_EQ(PeakFlopsOf("Tesla T4"), 65e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA A40"), 149.7e12);
  EXPECT_EQ(PeakFlopsOf("NVIDIA RTX A4000"), std::nullopt);
  EXPECT_EQ(PeakFlopsOf("a processor"), std::nullopt);
}

TEST(PeakFlopsTest, DifferentOrUnknownGpusAreNotGuessed) {
  EXPECT_EQ(PeakFlopsOfMachine({}), std::nullopt);
  EXPECT_EQ(PeakFlopsOfMachine({"NVIDIA H200", "NVIDIA H200"}), 989e12);
  EXPECT_EQ(PeakFlopsOfMachine({"NVIDIA H200", "Tesla T4"}), std::nullopt);
  EXPECT_EQ(PeakFlopsOfMachine({"NVIDIA H200", ""}), std::nullopt);
}

TEST(PeakFlopsTest, NamesComeFromTheDriversFiles) {
  const std::string folder = testing::TempDir() + "gpus_" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/0000:01:00.0");
  std::ofstream(folder + "/0000:01:00.0/information")
      << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 62\n";
  EXPECT_EQ(GpuNames(folder), (std::vector<std::string>{"NVIDIA H200"}));
  EXPECT_TRUE(GpuNames(folder + "/none").empty());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fsdprun::worker
