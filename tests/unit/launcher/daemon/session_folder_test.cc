#include "launcher/daemon/session_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kId[] = "0123456789abcdef0123456789abcdef";

class SessionFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/session_folder_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    path_ = pattern;
  }
  void TearDown() override { RemoveFolder(path_); }

  // A program in the place of fsdp-agent, which does as a session does.
  std::string Program(const std::string& body) {
    const std::string program = path_ + "/program";
    std::ofstream(program) << "#!/bin/sh\n" << body << "\n";
    ::chmod(program.c_str(), 0700);
    return program;
  }

  static void AwaitEnd(const SessionProcess& process) {
    pollfd ended{.fd = process.pidfd.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ended, 1, 60'000), 1);
  }

  std::string path_;
};

TEST_F(SessionFolderTest, AnIdNamesNoOtherPlace) {
  EXPECT_TRUE(IsSessionId(kId));
  for (const char* id :
       {"", "..", "../../../../../../../etc/passwd0", "0123456789ABCDEF0123456789ABCDEF",
        "0123456789abcdef0123456789abcde", "0123456789abcdef0123456789abcdef0"}) {
    EXPECT_FALSE(IsSessionId(id)) << id;
  }
}

TEST_F(SessionFolderTest, AFolderOfOthersIsRefused) {
  const std::string open = path_ + "/open";
  ASSERT_EQ(::mkdir(open.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(open.c_str(), 0750), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(DaemonFolder::Open(open).status()));
  const std::string link = path_ + "/link";
  std::filesystem::create_directory_symlink(path_, link);
  EXPECT_TRUE(absl::IsPermissionDenied(DaemonFolder::Open(link).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DaemonFolder::Open(path_ + "/no/such").status()));
}

TEST_F(SessionFolderTest, OneDaemonHasAFolderAndLeavesNoneBehind) {
  const std::string path = path_ + "/daemon";
  {
    const auto first = DaemonFolder::Open(path);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(absl::IsAlreadyExists(DaemonFolder::Open(path).status()));
    std::filesystem::create_directory(path + "/" + kId);
    std::filesystem::create_directory(path + "/of somebody");
    EXPECT_THAT(first->Sessions(), ElementsAre(kId));
    std::filesystem::remove_all(path + "/" + kId);
    std::filesystem::remove_all(path + "/of somebody");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(SessionFolderTest, ASessionThatCannotBeStartedLeavesNothing) {
  const std::string folder = path_ + "/" + kId;
  const auto process = StartSession(folder, {}, path_ + "/no-such-program", {});
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("no-such-program"));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(SessionFolderTest, ASessionIsFoundByTheNextDaemonUntilItEnds) {
  const std::string folder = path_ + "/" + kId;
  const std::string program = Program("echo $$ >&3; exec sleep 600");
  v1::SessionSpec spec;
  spec.set_title("a job");
  auto started = StartSession(folder, spec, program, {{"PATH", "/usr/bin:/bin"}});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(ReadSessionSpec(folder)->title(), "a job");
  EXPECT_EQ(ReadSessionExit(folder), std::nullopt);
  auto found = FindSession(folder);
  while (absl::IsUnavailable(found.status())) {  // It has not said its number yet.
    ::poll(nullptr, 0, 1);
    found = FindSession(folder);
  }
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->pid, started->pid);
  EXPECT_FALSE(found->is_child);
  ::kill(started->pid, SIGKILL);
  AwaitEnd(*started);
  ASSERT_EQ(::waitpid(started->pid, nullptr, 0), started->pid);
  const auto gone = FindSession(folder);
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_FALSE(gone->pidfd.valid());
  RemoveSessionFolder(folder);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(SessionFolderTest, ASessionWhoseEndNobodyWouldSeeIsNotStarted) {
  const std::string folder = path_ + "/" + kId;
  const std::string program = Program("exec sleep 600");
  std::thread([&] {
    ASSERT_TRUE(FailFromNowOn({.number = SYS_pidfd_open, .error = EMFILE}));
    const auto process = StartSession(folder, {}, program, {{"PATH", "/usr/bin:/bin"}});
    EXPECT_THAT(std::string(process.status().message()), HasSubstr("Too many open files"));
  }).join();
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // No child is left.
}

TEST_F(SessionFolderTest, ASessionThatCannotBeWatchedNowHasNotEnded) {
  const std::string folder = path_ + "/" + kId;
  auto started = StartSession(folder, {}, Program("echo $$ >&3; echo; exec sleep 600"),
                              {{"PATH", "/usr/bin:/bin"}});
  ASSERT_TRUE(started.ok()) << started.status();
  while (std::filesystem::file_size(folder + "/stdout") == 0) {
    ::poll(nullptr, 0, 1);
  }
  for (const FailingSystemCall& call :
       {FailingSystemCall{.number = SYS_pidfd_open, .error = EMFILE},
        FailingSystemCall{.number = SYS_openat, .error = EMFILE}}) {
    std::thread([&] {
      ASSERT_TRUE(FailFromNowOn(call));
      const auto found = FindSession(folder);
      EXPECT_TRUE(absl::IsUnavailable(found.status())) << found.status();
    }).join();
  }
  EXPECT_TRUE(FindSession(folder)->pidfd.valid());
  ::kill(started->pid, SIGKILL);
  ASSERT_EQ(::waitpid(started->pid, nullptr, 0), started->pid);
}

TEST_F(SessionFolderTest, WhatASessionSaysIsInItsFiles) {
  const std::string folder = path_ + "/" + kId;
  auto process =
      StartSession(folder, {}, Program("echo out $SEEN; echo error >&2; echo 7 >\"$2/exit\""),
                   {{"SEEN", "value"}});
  ASSERT_TRUE(process.ok()) << process.status();
  AwaitEnd(*process);
  ASSERT_EQ(::waitpid(process->pid, nullptr, 0), process->pid);
  std::string line;
  std::getline(std::ifstream(folder + "/stdout"), line);
  EXPECT_EQ(line, "out value");
  std::getline(std::ifstream(folder + "/stderr"), line);
  EXPECT_EQ(line, "error");
  EXPECT_EQ(ReadSessionExit(folder), 7);
}

TEST_F(SessionFolderTest, AnotherProcessGoesOnInItsFolder) {
  const std::string folder = path_ + "/" + kId;
  v1::SessionSpec spec;
  spec.set_title("title");
  const std::string program = Program("echo $$; echo $$ >&3");
  auto first = StartSession(folder, spec, program, {{"PATH", "/usr/bin:/bin"}});
  ASSERT_TRUE(first.ok()) << first.status();
  AwaitEnd(*first);
  ASSERT_EQ(::waitpid(first->pid, nullptr, 0), first->pid);
  auto second = RestartSession(folder, program, {{"PATH", "/usr/bin:/bin"}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(second->is_child);
  AwaitEnd(*second);
  ASSERT_EQ(::waitpid(second->pid, nullptr, 0), second->pid);
  const auto read = [&folder](const std::string& name) {
    std::ifstream file(folder + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(read("/stdout"),
            std::to_string(first->pid) + "\n" + std::to_string(second->pid) + "\n");
  EXPECT_EQ(read("/alive"), std::to_string(second->pid) + "\n");
  EXPECT_EQ(ReadSessionSpec(folder)->title(), "title");
  EXPECT_FALSE(RestartSession(path_ + "/none", program, {}).ok());
}

TEST_F(SessionFolderTest, NobodyEntersASessionByHand) {
  EXPECT_THAT(std::string(EnterSessionFolder(path_).message()), HasSubstr("not for use by hand"));
}

}  // namespace
}  // namespace fsdprun
