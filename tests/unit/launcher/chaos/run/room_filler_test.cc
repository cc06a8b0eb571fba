#include "launcher/chaos/run/room_filler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun::chaos {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

int64_t RoomIn(const std::string& folder) {
  struct statvfs room {};
  EXPECT_EQ(::statvfs(folder.c_str(), &room), 0);
  const auto blocks = ::geteuid() == 0 ? room.f_bfree : room.f_bavail;
  return static_cast<int64_t>(blocks * room.f_frsize);
}

TEST(RoomFillerTest, AFolderThatIsNotThereIsNamed) {
  RoomFiller filler;
  EXPECT_THAT(std::string(filler.Fill("/nowhere/at/all", 0).status().message()),
              HasSubstr("/nowhere/at/all"));
}

bool HasFileLimit(const absl::Status& status) {
  return std::string(status.message()).find("ulimit -f") != std::string::npos;
}

std::string MakeFolder() {
  std::string folder =
      absl::StrCat(fs::canonical(::testing::TempDir()).string(), "/room_filler_", ::getpid());
  fs::create_directories(folder);
  return folder;
}

/// Of the files without a name in the folder that this process has open: what they take.
int64_t BytesOfNameless(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    struct stat info {};
    if (target.rfind(folder + "/", 0) == 0 && ::stat(entry.path().c_str(), &info) == 0) {
      bytes += info.st_blocks * 512;
    }
  }
  return bytes;
}

// The machine's own file systems are not for a test to fill: all but some MiB is left. Others may
// take them meanwhile: then it is tried again.
TEST(RoomFillerTest, WhatWasTakenHasNoNameAndIsGivenBack) {
  constexpr int64_t kTaken = 64 << 20;
  constexpr int kAttempts = 100;
  const std::string folder = MakeFolder();
  {
    RoomFiller filler;
    absl::StatusOr<int64_t> taken = absl::UnknownError("");
    for (int i = 0; i < kAttempts && !taken.ok(); ++i) {
      taken = filler.Fill(folder, std::max<int64_t>(0, RoomIn(folder) - kTaken));
    }
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_GE(*taken, 1 << 20);
    EXPECT_GE(BytesOfNameless(folder), *taken);
    EXPECT_TRUE(fs::is_empty(folder));
  }
  EXPECT_EQ(BytesOfNameless(folder), 0);
  RemoveFolder(folder);
}

TEST(RoomFillerTest, WhereNothingCanBeTakenThatIsAnError) {
  RoomFiller filler;
  const absl::Status status = filler.Fill(::testing::TempDir(), INT64_MAX / 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("MiB of free room"), HasSubstr("--fill-leave"),
                             HasSubstr(::testing::TempDir())));
}

TEST(RoomFillerTest, AFillThatIsNotWantedAnyMoreTakesNothing) {
  const std::string folder = MakeFolder();
  RoomFiller filler;
  filler.Stop();
  EXPECT_EQ(filler.Fill(folder, 0).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(BytesOfNameless(folder), 0);
  RemoveFolder(folder);
}

std::atomic<bool> is_too_large{false};

// The disk would have room, and the job would notice nothing; and it must not be full for a moment.
TEST(RoomFillerTest, AFileThatMayNotGetLargeEnoughIsNotBegun) {
  ::signal(SIGXFSZ, [](int) { is_too_large = true; });
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 4 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  constexpr int64_t kWanted = 64 << 20;
  absl::Status status = absl::UnknownError("");
  // Others may take the room first: then it is tried again.
  for (int i = 0; i < 100 && !HasFileLimit(status); ++i) {
    RoomFiller filler;
    status = filler
                 .Fill(::testing::TempDir(),
                       std::max<int64_t>(0, RoomIn(::testing::TempDir()) - kWanted))
                 .status();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(HasFileLimit(status)) << status;
  EXPECT_FALSE(is_too_large) << "it was taken up to the limit";
}

TEST(RoomFillerTest, AFileSystemThatHasNoRoomToGiveIsNamed) {
  RoomFiller filler;
  EXPECT_THAT(std::string(filler.Fill("/proc/self", 0).status().message()),
              HasSubstr("/proc/self"));
}

}  // namespace
}  // namespace fsdprun::chaos
