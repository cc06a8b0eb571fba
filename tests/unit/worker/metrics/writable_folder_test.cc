#include "worker/metrics/writable_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "worker/metrics/metrics.h"

namespace fsdprun::worker {
namespace {

std::string RefusalOfFolder(const std::string& folder) {
  try {
    CheckWritableFolder(folder, "TensorBoard files", "metrics.tensorboard");
  } catch (const MetricsError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(WritableFolderTest, WhatCannotBeAFolderIsRefusedByName) {
  EXPECT_EQ(RefusalOfFolder("/dev/null/curves"),
            "cannot write TensorBoard files in /dev/null/curves: Not a directory; choose another "
            "metrics.tensorboard");
  const std::string file = testing::TempDir() + "no_folder_" + std::to_string(getpid());
  std::ofstream(file) << "text";
  EXPECT_NE(RefusalOfFolder(file), "accepted");
  std::filesystem::remove(file);
}

TEST(WritableFolderTest, FolderIsMade) {
  const std::string folder = testing::TempDir() + "folder_" + std::to_string(getpid());
  EXPECT_EQ(RefusalOfFolder(""), "accepted");
  EXPECT_EQ(RefusalOfFolder(folder + "/a/b"), "accepted");
  EXPECT_TRUE(std::filesystem::is_directory(folder + "/a/b"));
  std::filesystem::remove_all(folder);
}

TEST(WritableFolderTest, APlaceIsLookedAtAndNotMade) {
  const std::string folder = testing::TempDir() + "looked_at_" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/file") << "text";
  EXPECT_EQ(WhyNotWritable(folder, Place::kFolder), 0);
  EXPECT_EQ(WhyNotWritable(folder + "/a/b", Place::kFolder), 0);
  EXPECT_EQ(WhyNotWritable(folder + "/a/b", Place::kFile), 0);
  EXPECT_EQ(WhyNotWritable(folder + "/file", Place::kFile), 0);
  EXPECT_EQ(WhyNotWritable(folder, Place::kFile), EISDIR);
  EXPECT_EQ(WhyNotWritable(folder + "/file", Place::kFolder), ENOTDIR);
  EXPECT_EQ(WhyNotWritable(folder + "/file/a", Place::kFile), ENOTDIR);
  EXPECT_FALSE(std::filesystem::exists(folder + "/a"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fsdprun::worker
