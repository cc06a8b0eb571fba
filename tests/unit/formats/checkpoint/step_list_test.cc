#include "formats/checkpoint/step_list.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/manifest.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun::checkpoint {
namespace {

class StepListTest : public testing::Test {
 protected:
  std::string ManifestOf(int64_t step) const {
    return dir_ / ("step-" + std::to_string(step)) + "/" + kManifestFile;
  }

  void Make(int64_t step, int64_t sequence) const {
    const std::filesystem::path path = ManifestOf(step);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path.parent_path() / kMetadataFile) << "x";
    Manifest manifest;
    manifest.step = step;
    manifest.sequence = sequence;
    manifest.run = "run";
    std::ofstream(path) << EncodeManifest(manifest);
  }

  /// Other bytes, of which the file's size and time say nothing.
  static void SpoilUnnoticed(const std::string& path) {
    const auto modified = std::filesystem::last_write_time(path);
    const auto size = std::filesystem::file_size(path);
    std::fstream(path, std::ios::in | std::ios::out) << std::string(size, '#');
    std::filesystem::last_write_time(path, modified);
  }

  const TemporaryDirectory dir_;
};

TEST_F(StepListTest, ReadsWhatIsUnchangedOnce) {
  Make(1, 1);
  Make(2, 2);
  StepList steps;
  ASSERT_EQ(steps.List(dir_.path()).size(), 2u);
  SpoilUnnoticed(ManifestOf(1));
  const std::vector<StepEntry> entries = steps.List(dir_.path());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[1].step, 1);
  EXPECT_EQ(entries[1].sequence, 1);
  EXPECT_EQ(entries[1].run, "run");
  // Who lists for the first time reads.
  EXPECT_EQ(ListSteps(dir_.path())[0].step, 1);
  EXPECT_EQ(ListSteps(dir_.path())[0].sequence, std::nullopt);
}

TEST_F(StepListTest, ReadsWhatWasWrittenAgain) {
  Make(1, 1);
  StepList steps;
  ASSERT_EQ(steps.List(dir_.path())[0].sequence, 1);
  const auto modified = std::filesystem::last_write_time(ManifestOf(1));
  Make(1, 9);
  std::filesystem::last_write_time(ManifestOf(1), modified + std::chrono::nanoseconds(1));
  EXPECT_EQ(steps.List(dir_.path())[0].sequence, 9);
}

TEST_F(StepListTest, ReadsAnotherFileOfTheSameNameSizeAndTime) {
  Make(1, 1);
  StepList steps;
  ASSERT_EQ(steps.List(dir_.path())[0].sequence, 1);
  const auto modified = std::filesystem::last_write_time(ManifestOf(1));
  std::filesystem::rename(dir_ / "step-1", dir_ / "aside");
  Make(1, 2);
  std::filesystem::last_write_time(ManifestOf(1), modified);
  EXPECT_EQ(steps.List(dir_.path())[0].sequence, 2);
}

TEST_F(StepListTest, WhatCannotBeReadIsTriedAgain) {
  Make(1, 1);
  const auto modified = std::filesystem::last_write_time(ManifestOf(1));
  const std::string good = EncodeManifest([] {
    Manifest manifest;
    manifest.step = manifest.sequence = 1;
    return manifest;
  }());
  SpoilUnnoticed(ManifestOf(1));
  StepList steps;
  EXPECT_EQ(steps.List(dir_.path())[0].sequence, std::nullopt);
  std::ofstream(ManifestOf(1)) << good;
  std::filesystem::last_write_time(ManifestOf(1), modified);
  EXPECT_EQ(steps.List(dir_.path())[0].sequence, 1);
}

TEST_F(StepListTest, RemembersSeveralDirectories) {
  Make(1, 1);
  StepList steps;
  steps.List(dir_.path());
  const TemporaryDirectory other;
  EXPECT_TRUE(steps.List(other.path()).empty());
  SpoilUnnoticed(ManifestOf(1));
  EXPECT_EQ(steps.List(dir_.path())[0].sequence, 1);
}

TEST_F(StepListTest, ForgetsWhatIsGone) {
  Make(1, 1);
  StepList steps;
  ASSERT_EQ(steps.List(dir_.path()).size(), 1u);
  std::filesystem::rename(dir_ / "step-1", dir_ / "aside");
  EXPECT_TRUE(steps.List(dir_.path()).empty());
  SpoilUnnoticed(dir_ / "aside" + "/" + kManifestFile);
  std::filesystem::rename(dir_ / "aside", dir_ / "step-1");
  EXPECT_EQ(steps.List(dir_.path())[0].sequence, std::nullopt);
}

TEST_F(StepListTest, WhatCannotBeReadForNowIsThrownAndNothingIsForgotten) {
  Make(1, 1);
  Make(2, 2);
  StepList steps;
  steps.List(dir_.path());
  SpoilUnnoticed(ManifestOf(1));
  {
    const PathFault fault(PathFault::kOpen, "step-2/fsdprun.json", ESTALE);
    try {
      steps.List(dir_.path());
      ADD_FAILURE() << "its sequence is not known";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.error_number(), ESTALE);
      EXPECT_NE(std::string(error.what()).find("step-2/fsdprun.json"), std::string::npos);
    }
    // Who only shows them shows the others.
    const std::vector<StepEntry> shown = ListSteps(dir_.path());
    ASSERT_EQ(shown.size(), 2u);
    EXPECT_EQ(shown[0].sequence, std::nullopt);
  }
  const std::vector<StepEntry> entries = steps.List(dir_.path());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].sequence, 2);
  EXPECT_EQ(entries[1].sequence, 1);
}

TEST_F(StepListTest, WhatADiskCannotReadCountsAsDamagedWhateverOfItThatIs) {
  for (const auto& [kind, part] :
       {std::pair(PathFault::kOpen, "step-2/fsdprun.json"),
        std::pair(PathFault::kLook, "step-2/fsdprun.json"),
        std::pair(PathFault::kLook, "step-2/.metadata"), std::pair(PathFault::kLook, "step-2")}) {
    Make(1, 1);
    Make(2, 2);
    const PathFault fault(kind, part, EIO);
    const std::vector<StepEntry> entries = StepList().List(dir_.path());
    ASSERT_EQ(entries.size(), 2u) << part;
    EXPECT_EQ(entries[0].step, 2) << part;
    EXPECT_TRUE(entries[0].is_complete) << part;
    // Or it would count as one of those that are kept.
    EXPECT_EQ(entries[0].is_damaged, entries[0].sequence == 2 || part == std::string("step-2"))
        << part;
    EXPECT_EQ(entries[0].sequence.value_or(2), 2) << part;
    EXPECT_EQ(entries[1].sequence, 1) << part;
  }
}

}  // namespace
}  // namespace fsdprun::checkpoint
