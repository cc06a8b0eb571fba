#include "launcher/chaos/run/scratch_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun::chaos {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class ScratchFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    parent_ = absl::StrCat(::testing::TempDir(), "scratch_folder_", ::getpid());
    fs::create_directories(parent_);
  }
  void TearDown() override {
    if (user_ > 0) {
      EndUser();
    }
    RemoveFolder(parent_);
  }

  std::unique_ptr<ScratchFolder> Make() const {
    absl::StatusOr<std::unique_ptr<ScratchFolder>> folder =
        ScratchFolder::Make({{"TMPDIR", parent_}});
    EXPECT_TRUE(folder.ok()) << folder.status();
    return *std::move(folder);
  }
  /// As by a program that is killed. Returns its path.
  std::string MakeAndDie() const {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const std::unique_ptr<ScratchFolder> folder = Make();
      std::ofstream(folder->path() + "/left") << "x";
      const std::string& told = folder->path();
      [[maybe_unused]] const ssize_t n = ::write(ends[1], told.data(), told.size());
      ::kill(::getpid(), SIGKILL);
    }
    ::close(ends[1]);
    std::string path(4096, '\0');
    path.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(ends[0], path.data(), 4096))));
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    return path;
  }
  /// A process that has it as its TMPDIR.
  void StartUser(const std::string& path) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    user_ = ::fork();
    if (user_ == 0) {
      const std::string variable = "TMPDIR=" + path;
      const std::array<const char*, 3> words{"sleep", "1000", nullptr};
      const std::array<const char*, 2> variables{variable.c_str(), nullptr};
      ::execve("/bin/sleep", const_cast<char**>(words.data()),
               const_cast<char**>(variables.data()));
      ::_exit(1);
    }
    ::close(ends[1]);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 0);  // The exec has closed it.
    ::close(ends[0]);
  }
  void EndUser() {
    ::kill(user_, SIGKILL);
    ::waitpid(user_, nullptr, 0);
    user_ = 0;
  }

  std::string parent_;
  pid_t user_ = 0;
};

TEST_F(ScratchFolderTest, ItGoesWithItsObject) {
  std::unique_ptr<ScratchFolder> folder = Make();
  const std::string path = folder->path();
  fs::create_directories(path + "/fsdprun_job_abc/0");
  std::ofstream(path + "/fsdprun_job_abc/0/stdout.log") << "x";
  EXPECT_EQ(fs::path(path).parent_path(), parent_);
  folder.reset();
  EXPECT_TRUE(fs::is_empty(parent_));
}

TEST_F(ScratchFolderTest, WhatAKilledProgramHasLeftGoesWithTheNext) {
  const std::string left = MakeAndDie();
  ASSERT_TRUE(fs::exists(left + "/left"));
  const std::unique_ptr<ScratchFolder> folder = Make();
  EXPECT_FALSE(fs::exists(left));
  const std::unique_ptr<ScratchFolder> other = Make();
  EXPECT_TRUE(fs::exists(folder->path()));
}

TEST_F(ScratchFolderTest, WhatAJobStillUsesStays) {
  const std::string left = MakeAndDie();
  StartUser(left);
  Make();
  EXPECT_TRUE(fs::exists(left + "/left"));
  EndUser();
  Make();
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(ScratchFolderTest, OthersFoldersAreLeftAlone) {
  fs::create_directories(parent_ + "/fsdprun_chaos_mine");
  fs::create_directories(parent_ + "/else");
  fs::create_directory_symlink(parent_ + "/else", parent_ + "/fsdprun_chaos_link");
  std::ofstream(parent_ + "/else/in-use") << "";
  Make();
  EXPECT_TRUE(fs::exists(parent_ + "/fsdprun_chaos_mine"));
  EXPECT_TRUE(fs::exists(parent_ + "/fsdprun_chaos_link/in-use"));
}

TEST_F(ScratchFolderTest, AFolderThatIsNotThereIsSaidWithWhatToDo) {
  const auto folder = ScratchFolder::Make({{"TMPDIR", "/nowhere/at/all"}});
  EXPECT_THAT(std::string(folder.status().message()),
              AllOf(HasSubstr("/nowhere/at/all"), HasSubstr("TMPDIR")));
}

}  // namespace
}  // namespace fsdprun::chaos
