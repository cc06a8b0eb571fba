#include "launcher/chaos/run/checkpoint_damage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun::chaos {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CheckpointDamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / absl::StrCat("checkpoint_damage_", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { RemoveFolder(folder_); }

  void Put(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  std::string TextOf(const std::string& name) {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path folder_;
  CheckpointDamage damage_;
  /// So often.
  int wanted_ = 1000;
  const std::function<bool()> is_wanted_ = [this] { return wanted_-- > 0; };
  const std::string sound_ = std::string(5000, 'x');
};

TEST_F(CheckpointDamageTest, AJobThatCouldNotFallBackIsLeftAlone) {
  EXPECT_THAT(
      std::string(damage_.Flip((folder_ / "none").string(), 1, is_wanted_).status().message()),
      HasSubstr("no two sound checkpoints"));
  Put("step-4/weights", sound_);
  Put("step-5.tmp-1-2/weights", sound_);
  EXPECT_FALSE(damage_.Flip(folder_.string(), 1, is_wanted_).ok());
  EXPECT_EQ(TextOf("step-4/weights"), sound_);
}

TEST_F(CheckpointDamageTest, TheLargestFileOfTheNewestIsDamaged) {
  Put("step-9/weights", sound_);
  Put("step-10/weights", sound_);
  Put("step-10/names", "a");
  const absl::StatusOr<std::string> file = damage_.Flip(folder_.string(), 1, is_wanted_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file, (folder_ / "step-10" / "weights").string());
  EXPECT_NE(TextOf("step-10/weights"), sound_);
  EXPECT_EQ(TextOf("step-10/weights").size(), sound_.size());
  EXPECT_EQ(TextOf("step-10/names"), "a");
  EXPECT_EQ(TextOf("step-9/weights"), sound_);
}

TEST_F(CheckpointDamageTest, TheLastSoundOneIsNeverDamaged) {
  Put("step-1.pt", sound_);
  Put("step-2.pt", sound_);
  EXPECT_TRUE(damage_.Flip(folder_.string(), 1, is_wanted_).ok());
  EXPECT_FALSE(damage_.Flip(folder_.string(), 2, is_wanted_).ok());
  EXPECT_EQ(TextOf("step-1.pt"), sound_);
  Put("step-3.pt", sound_);
  EXPECT_TRUE(damage_.Flip(folder_.string(), 3, is_wanted_).ok());
  EXPECT_NE(TextOf("step-3.pt"), sound_);
}

TEST_F(CheckpointDamageTest, WhatIsNotWantedAnyMoreIsNotDone) {
  Put("step-1.pt", sound_);
  Put("step-2.pt", sound_);
  wanted_ = 0;
  EXPECT_EQ(damage_.Flip(folder_.string(), 1, is_wanted_).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(TextOf("step-2.pt"), sound_);
  wanted_ = 1000;
  EXPECT_TRUE(damage_.Flip(folder_.string(), 1, is_wanted_).ok());
}

// The file system may hang at any of them.
TEST_F(CheckpointDamageTest, NoByteIsFlippedAfterItIsNotWantedAnyMore) {
  Put("step-1.pt", sound_);
  Put("step-2.pt", sound_);
  wanted_ = 3;
  const absl::StatusOr<std::string> file = damage_.Flip(folder_.string(), 1, is_wanted_);
  ASSERT_TRUE(file.ok()) << "what is damaged is told: " << file.status();
  int flipped = 0;
  for (const char byte : TextOf("step-2.pt")) {
    flipped += byte != 'x' ? 1 : 0;
  }
  EXPECT_EQ(flipped, 3);
  wanted_ = 1000;
  EXPECT_FALSE(damage_.Flip(folder_.string(), 1, is_wanted_).ok()) << "only one is sound";
}

TEST_F(CheckpointDamageTest, ACheckpointThatIsWrittenAnewIsSound) {
  Put("step-1/weights", sound_);
  Put("step-2/weights", sound_);
  const std::string newest = (folder_ / "step-2" / "weights").string();
  ASSERT_EQ(damage_.Flip(folder_.string(), 1, is_wanted_).value_or(""), newest);
  fs::remove_all(folder_ / "step-2");
  Put("step-2.new/weights", sound_);
  // The number of the file may be used again, and its time may be one of a coarse clock.
  fs::last_write_time(folder_ / "step-2.new" / "weights",
                      fs::last_write_time(folder_ / "step-1" / "weights") - std::chrono::hours(1));
  fs::rename(folder_ / "step-2.new", folder_ / "step-2");
  EXPECT_EQ(damage_.Flip(folder_.string(), 2, is_wanted_).value_or(""), newest);
  EXPECT_NE(TextOf("step-2/weights"), sound_);
  EXPECT_EQ(TextOf("step-1/weights"), sound_);
}

}  // namespace
}  // namespace fsdprun::chaos
