#include "launcher/chaos/run/checkpoint_damage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

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
  void TearDown() override { fs::remove_all(folder_); }

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
  const std::string sound_ = std::string(5000, 'x');
};

TEST_F(CheckpointDamageTest, AJobThatCouldNotFallBackIsLeftAlone) {
  EXPECT_THAT(std::string(damage_.Flip((folder_ / "none").string(), 1).status().message()),
              HasSubstr("no two sound checkpoints"));
  Put("step-4/weights", sound_);
  Put("step-5.tmp-1-2/weights", sound_);
  EXPECT_FALSE(damage_.Flip(folder_.string(), 1).ok());
  EXPECT_EQ(TextOf("step-4/weights"), sound_);
}

TEST_F(CheckpointDamageTest, TheLargestFileOfTheNewestIsDamaged) {
  Put("step-9/weights", sound_);
  Put("step-10/weights", sound_);
  Put("step-10/names", "a");
  const absl::StatusOr<std::string> file = damage_.Flip(folder_.string(), 1);
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
  EXPECT_TRUE(damage_.Flip(folder_.string(), 1).ok());
  EXPECT_FALSE(damage_.Flip(folder_.string(), 2).ok());
  EXPECT_EQ(TextOf("step-1.pt"), sound_);
  Put("step-3.pt", sound_);
  EXPECT_TRUE(damage_.Flip(folder_.string(), 3).ok());
  EXPECT_NE(TextOf("step-3.pt"), sound_);
}

}  // namespace
}  // namespace fsdprun::chaos
