#include "launcher/chaos/run/room_filler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace fsdprun::chaos {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

int64_t RoomIn(const std::string& folder) {
  struct statvfs room {};
  EXPECT_EQ(::statvfs(folder.c_str(), &room), 0);
  return static_cast<int64_t>(room.f_bavail * room.f_frsize);
}

TEST(RoomFillerTest, AFolderThatIsNotThereIsNamed) {
  RoomFiller filler;
  EXPECT_THAT(std::string(filler.Fill("/nowhere/at/all", 0).status().message()),
              HasSubstr("/nowhere/at/all"));
}

// The machine's own file systems are not for a test to fill: all but some MiB is left. Others may
// use them, too: how much exactly was taken says nothing.
TEST(RoomFillerTest, WhatWasTakenHasNoName) {
  constexpr int64_t kTaken = 64 << 20;
  const std::string folder = absl::StrCat(::testing::TempDir(), "room_filler_", ::getpid());
  fs::create_directories(folder);
  RoomFiller filler;
  const absl::StatusOr<int64_t> taken =
      filler.Fill(folder, std::max<int64_t>(0, RoomIn(folder) - kTaken));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_GT(*taken, 0);
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove_all(folder);
}

TEST(RoomFillerTest, NothingIsTakenWhereLessIsThereThanIsToBeLeft) {
  RoomFiller filler;
  EXPECT_EQ(filler.Fill(::testing::TempDir(), INT64_MAX / 2).value(), 0);
}

}  // namespace
}  // namespace fsdprun::chaos
