// System calls that say EINTR: a stop request comes as a signal.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/file_system.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace {

// The next call says EINTR.
bool interrupts_list = false;
bool interrupts_removal = false;
// So does the next rename, and is done or not.
bool interrupts_rename = false;
bool is_renamed = false;

bool IsInterrupted(bool& is_next) {
  if (!std::exchange(is_next, false)) {
    return false;
  }
  errno = EINTR;
  return true;
}

}  // namespace

// In the place of libc's.

extern "C" DIR* fdopendir(int fd) {
  using Call = DIR* (*)(int);
  static const auto next = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "fdopendir"));
  return IsInterrupted(interrupts_list) ? nullptr : next(fd);
}

extern "C" int unlinkat(int directory, const char* path, int flags) noexcept {
  return IsInterrupted(interrupts_removal)
             ? -1
             : static_cast<int>(syscall(SYS_unlinkat, directory, path, flags));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  const bool is_interrupted = std::exchange(interrupts_rename, false);
  if ((!is_interrupted || is_renamed) && renameat(AT_FDCWD, from, AT_FDCWD, to) != 0) {
    return -1;
  }
  errno = EINTR;
  return is_interrupted ? -1 : 0;
}

namespace fsdprun::checkpoint {
namespace {

using ::testing::ElementsAre;

class InterruptedCallTest : public testing::Test {
 protected:
  InterruptedCallTest() {
    std::filesystem::create_directory(dir_ / "a");
    std::ofstream(dir_ / "a/file") << "x";
  }

  const TemporaryDirectory dir_;
  FileSystem file_system_;
};

TEST_F(InterruptedCallTest, RenameIsDoneOnceWhetherItWasDoneThenOrNot) {
  for (const bool is_done : {false, true}) {
    interrupts_rename = true;
    is_renamed = is_done;
    EXPECT_EQ(file_system_.Rename(dir_ / "a", dir_ / "b"), 0) << is_done;
    EXPECT_FALSE(interrupts_rename);
    EXPECT_THAT(ListDirectory(dir_.path()), ElementsAre("b"));
    std::filesystem::rename(dir_ / "b", dir_ / "a");
  }
}

TEST_F(InterruptedCallTest, WhatWasNotThereIsAnErrorWithOrWithoutASignal) {
  std::filesystem::create_directory(dir_ / "b");
  EXPECT_EQ(file_system_.Rename(dir_ / "absent", dir_ / "b"), ENOENT);
  interrupts_rename = true;
  is_renamed = false;
  EXPECT_EQ(file_system_.Rename(dir_ / "absent", dir_ / "c"), ENOENT);
  EXPECT_THAT(ListDirectory(dir_.path()), ElementsAre("a", "b"));
}

TEST_F(InterruptedCallTest, RemovalGoesOn) {
  interrupts_removal = true;
  EXPECT_EQ(file_system_.RemoveTree(dir_ / "a"), 0);
  EXPECT_FALSE(interrupts_removal);
  EXPECT_THAT(ListDirectory(dir_.path()), ElementsAre());
}

TEST_F(InterruptedCallTest, DirectoryIsListedAgain) {
  interrupts_list = true;
  EXPECT_THAT(ListDirectory(dir_.path()), ElementsAre("a"));
  EXPECT_FALSE(interrupts_list);
}

TEST_F(InterruptedCallTest, LookIsTakenAgain) {
  const PathFault fault(PathFault::kLook, "/a", EINTR, 1);
  EXPECT_TRUE(DirectoryExists(dir_ / "a"));
}

/// A signal comes when the claim has been written and is to be opened.
class InterruptsClaim : public FileSystem {
 public:
  std::optional<PathFault> fault;

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "rename" && effect.path.ends_with("/.claim")) {
      fault.emplace(PathFault::kOpen, "/.claim", EINTR, 1);
    }
    return 0;
  }
};

TEST_F(InterruptedCallTest, ClaimIsTaken) {
  InterruptsClaim file_system;
  const FileDescriptor file = AcquireClaim(file_system, dir_.path(), {MakeClaim("job", 1)},
                                           [](const std::string& text) { ADD_FAILURE() << text; });
  EXPECT_TRUE(file_system.fault);
  EXPECT_GE(file.get(), 0);
}

}  // namespace
}  // namespace fsdprun::checkpoint
