#include "launcher/chaos/run/launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class LaunchesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGINT, SIG_DFL);  // A shell's background job ignores it, and so would all below it.
    folder_ = absl::StrCat(::testing::TempDir(), "launches_", ::getpid());
    fs::create_directories(folder_);
    Make();
  }
  void TearDown() override {
    launches_.reset();
    RemoveFolder(folder_);
  }

  void Make() {
    launches_ = std::make_unique<Launches>(
        loop_, Environment{{"PATH", "/usr/bin:/bin"}, {"DIR", folder_}, {"OF_ALL", "all"}},
        Launches::Hooks{[this](int code) {
                          EXPECT_FALSE(code_.has_value());
                          code_ = code;
                        },
                        [this](const absl::Status& why) {
                          EXPECT_FALSE(code_.has_value());
                          cannot_.push_back(std::string(why.message()));
                        },
                        [](const std::string&) {}});
  }
  static std::vector<std::string> Shell(const std::string& script) {
    return {"/bin/sh", "-c", script};
  }
  /// A program that the test can do with as it likes.
  std::string Program(const std::string& script) {
    const std::string path = folder_ + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ::chmod(path.c_str(), 0700);
    return path;
  }
  /// The pids that were written there, once there are so many.
  std::vector<int64_t> Pids(const std::string& name, size_t count) {
    std::vector<int64_t> pids;
    EXPECT_TRUE(waiter_.PollUntil([&] {
      pids.clear();
      std::ifstream file(absl::StrCat(folder_, "/", name));
      for (int64_t pid = 0; file >> pid;) {
        pids.push_back(pid);
      }
      return pids.size() >= count;
    })) << name;
    return pids;
  }
  static bool Lives(int64_t pid) {
    ProcessInfo info;
    return ReadProcess(static_cast<pid_t>(pid), info) && !info.IsDead();
  }
  void AwaitChild(int64_t parent, const std::string& name) {
    EXPECT_TRUE(waiter_.PollUntil([&] {
      std::ifstream children(absl::StrCat("/proc/", parent, "/task/", parent, "/children"));
      int64_t child = 0;
      std::string found;
      children >> child;
      std::ifstream(absl::StrCat("/proc/", child, "/comm")) >> found;
      return found == name;
    }));
  }
  int AwaitEnd() {
    EXPECT_TRUE(waiter_.PollUntil([this] { return code_.has_value(); }));
    return code_.value_or(-1);
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::string folder_;
  std::unique_ptr<Launches> launches_;
  std::optional<int> code_;
  std::vector<std::string> cannot_;
};

TEST_F(LaunchesTest, TheJobsCodeIsThatOfItsCommand) {
  launches_->StartJob(Shell("exit 3"));
  EXPECT_EQ(AwaitEnd(), 3);
  EXPECT_THAT(cannot_, IsEmpty());
}

TEST_F(LaunchesTest, AScriptsProgramsEndWithIt) {
  launches_->StartJob(
      Shell("sleep 1000 & echo $! >>$DIR/pids; setsid sleep 1000 & "
            "echo $! >>$DIR/pids; sh -c 'echo $$ >>$DIR/pids; sleep 1000'; true"));
  const std::vector<int64_t> pids = Pids("pids", 3);
  launches_->End(SIGTERM);
  EXPECT_EQ(AwaitEnd(), 128 + SIGTERM);
  for (const int64_t pid : pids) {
    EXPECT_FALSE(Lives(pid));
  }
}

TEST_F(LaunchesTest, WhatEndsInOrderIsLetDoSo) {
  launches_->StartJob(
      Shell("sh -c 'trap \"echo 1 >$DIR/told\" TERM; echo $$ >$DIR/pids; "
            "while [ ! -e $DIR/told ]; do sleep 0.1; done; echo 2 >$DIR/ended'; "
            "true"));
  Pids("pids", 1);
  launches_->End(SIGTERM);
  AwaitEnd();
  EXPECT_THAT(Pids("ended", 1), ElementsAre(2));
}

TEST_F(LaunchesTest, AShellThatWaitsEndsAsWithATerminal) {
  launches_->StartJob({"/bin/bash", "-c", "sh -c 'echo $$ >>$DIR/pids; sleep 1000'; exit 5"});
  // A shell's child that has not executed its program yet loses the signal, with a terminal, too.
  AwaitChild(Pids("pids", 1).at(0), "sleep");
  launches_->End(SIGINT);
  EXPECT_EQ(AwaitEnd(), 128 + SIGINT);
}

TEST_F(LaunchesTest, WhatTakesNoSignalIsKilled) {
  launches_->StartJob(
      Shell("trap '' TERM INT; setsid sh -c 'echo $$ >$DIR/pids; "
            "while true; do sleep 1000; done'; true"));
  const std::vector<int64_t> pids = Pids("pids", 1);
  launches_->End(SIGINT);
  launches_->KillAll();
  EXPECT_EQ(AwaitEnd(), 128 + SIGKILL);
  EXPECT_FALSE(Lives(pids[0]));
}

TEST_F(LaunchesTest, ItsEndIsThatOfAll) {
  launches_->StartJob(
      Shell("setsid sh -c 'echo $$ >>$DIR/pids; sleep 1000' & "
            "echo $$ >>$DIR/pids; trap '' TERM; sleep 1000; true"));
  const std::vector<int64_t> pids = Pids("pids", 2);
  launches_.reset();
  for (const int64_t pid : pids) {
    EXPECT_FALSE(Lives(pid));
  }
  EXPECT_EQ(code_, std::nullopt);
}

TEST_F(LaunchesTest, WhoWasKilledIsStartedAgainAndKnownByItsNumber) {
  launches_->StartNodes(Shell("exec sleep 1000"),
                        {Shell("exec sleep 1000"), Shell("echo $$ >>$DIR/pids; exec sleep 1000")},
                        {{}, {}});
  const int64_t pid = Pids("pids", 1)[0];
  ASSERT_TRUE(waiter_.PollUntil([this] { return launches_->launchers().size() == 2; }));
  EXPECT_EQ(launches_->launchers()[pid], 1);
  launches_->OnKilled(pid);
  ::kill(static_cast<pid_t>(pid), SIGKILL);
  const int64_t again = Pids("pids", 2)[1];
  EXPECT_NE(again, pid);
  ASSERT_TRUE(waiter_.PollUntil([&] { return launches_->launchers().count(again) > 0; }));
  launches_->KillAll();
  AwaitEnd();
}

TEST_F(LaunchesTest, EachNodeHasVariablesOfItsOwn) {
  const std::string show = "echo $OF_ALL $OF_ONE >$DIR/$NODE; ";
  launches_->StartNodes(
      Shell("while [ ! -e $DIR/0 ] || [ ! -e $DIR/1 ]; do sleep 0.01; done"),
      {Shell(show), Shell(show)},
      {{{"NODE", "0"}, {"OF_ONE", "a"}}, {{"NODE", "1"}, {"OF_ONE", "b"}, {"OF_ALL", "mine"}}});
  EXPECT_EQ(AwaitEnd(), 0);
  const auto said = [this](const char* name) {
    std::ifstream file(absl::StrCat(folder_, "/", name));
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  EXPECT_EQ(said("0"), "all a\n");
  EXPECT_EQ(said("1"), "mine b\n");
}

TEST_F(LaunchesTest, AProgramThatIsGoneEndsAll) {
  const std::string program = Program("echo $$ >>$DIR/program.pids; exec sleep 1000");
  launches_->StartNodes(Shell("echo $$ >>$DIR/pids; exec sleep 1000"),
                        {{program}, Shell("echo $$ >>$DIR/pids; exec sleep 1000")}, {{}, {}});
  const std::vector<int64_t> others = Pids("pids", 2);
  const int64_t pid = Pids("program.pids", 1)[0];
  ASSERT_TRUE(waiter_.PollUntil([&] { return launches_->launchers().count(pid) > 0; }));
  fs::remove(program);
  launches_->OnKilled(pid);
  ::kill(static_cast<pid_t>(pid), SIGKILL);
  ASSERT_TRUE(waiter_.PollUntil([this] { return !cannot_.empty(); }));
  launches_->End(SIGTERM);
  launches_->KillAll();
  AwaitEnd();
  EXPECT_THAT(cannot_,
              ElementsAre(testing::AllOf(
                  HasSubstr("the launcher of node 0 could not be started again, in 10 attempts"),
                  HasSubstr("no such program"))));
  for (const int64_t other : others) {
    EXPECT_FALSE(Lives(other));
  }
}

}  // namespace
}  // namespace fsdprun::chaos
