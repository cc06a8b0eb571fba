#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/process/keeper_fixture.h"

namespace fsdprun {
namespace {

class NoProcessIsLeftTest : public KeeperFixture {};

/// A worker with a child in its session, a child in a session of its own, and a double-forked
/// daemon; each writes its pid and never ends by itself.
const char kFamily[] =
    "trap '' TERM HUP INT; f='echo $$ >> $FOLDER/pids; exec tail -f /dev/null'; "
    "sh -c \"$f\" & setsid sh -c \"$f\" & (setsid sh -c \"$f\" &) ; echo $$ >> $FOLDER/pids; wait";

TEST_F(NoProcessIsLeftTest, ClosingTheSocketEndsEveryProcess) {
  StartKeeper();
  Spawn(Shell(0, kFamily));
  std::vector<pid_t> pids = ReadPids("pids", 4);
  ASSERT_EQ(pids.size(), 4u);
  pids.push_back(client_->pid());
  client_.reset();
  EXPECT_TRUE(RunUntilDead(pids));
}

TEST_F(NoProcessIsLeftTest, KillAllEndsEveryProcessBeforeAllGone) {
  StartKeeper();
  Spawn(Shell(0, kFamily));
  const std::vector<pid_t> pids = ReadPids("pids", 4);
  ASSERT_EQ(pids.size(), 4u);
  client_->KillAll();
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  EXPECT_TRUE(std::none_of(pids.begin(), pids.end(), IsAlive));
  EXPECT_EQ(exited_[0].signal, SIGKILL);
}

TEST_F(NoProcessIsLeftTest, DescendantsOfACrashedWorkerAreGoneBeforeAllGone) {
  StartKeeper();
  const std::string family(kFamily);
  Spawn(Shell(0, family.substr(0, family.rfind("wait")) +
                     "while [ $(wc -l < $FOLDER/pids) -lt 4 ]; do :; done; kill -KILL $$"));
  const std::vector<pid_t> pids = ReadPids("pids", 4);
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  EXPECT_TRUE(std::none_of(pids.begin(), pids.end(), IsAlive));
  EXPECT_EQ(exited_[0].signal, SIGKILL);
}

TEST_F(NoProcessIsLeftTest, SiblingsOfADeadWorkerAreSpared) {
  StartKeeper();
  Spawn(Shell(1, kFamily));
  const std::vector<pid_t> pids = ReadPids("pids", 4);
  Spawn(Shell(0, "exit 1"));
  ASSERT_TRUE(RunUntilExited(0));
  exited_.clear();
  Spawn(Shell(0, "exit 2"));
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_TRUE(std::all_of(pids.begin(), pids.end(), IsAlive));
  EXPECT_EQ(all_gone_, 0);
}

TEST_F(NoProcessIsLeftTest, KillingTheKeeperEndsEveryProcessAndIsReported) {
  StartKeeper();
  Spawn(Shell(0, kFamily));
  const std::vector<pid_t> pids = ReadPids("pids", 4);
  ASSERT_EQ(pids.size(), 4u);
  ::kill(client_->pid(), SIGKILL);
  ASSERT_TRUE(RunUntil([&] { return !lost_.empty(); }));
  EXPECT_TRUE(std::none_of(pids.begin(), pids.end(), IsAlive));
  EXPECT_EQ(lost_, std::vector<std::string>{"the keeper was killed by signal 9"});
  EXPECT_FALSE(client_->is_alive());
  EXPECT_EQ(client_->Spawn(Shell(0, "true")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(NoProcessIsLeftTest, ClientMayBeDestroyedInOnLost) {
  KeeperCallbacks on;
  bool is_lost = false;
  on.on_lost = [&](const std::string&) {
    client_.reset();
    is_lost = true;
    Notice();
  };
  client_ = std::make_unique<KeeperClient>(loop_, on);
  ASSERT_TRUE(client_->Start(FSDPRUN_KEEPER_BINARY).ok());
  ::kill(client_->pid(), SIGKILL);
  EXPECT_TRUE(RunUntil([&] { return is_lost; }));
}

TEST_F(NoProcessIsLeftTest, TerminalSignalsDoNotEndTheKeeper) {
  StartKeeper();
  ASSERT_TRUE(RunUntil([&] { return !hellos_.empty(); }));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    ::kill(client_->pid(), signal);
  }
  Spawn(Shell(0, "exit 4"));
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_TRUE(lost_.empty());
}

TEST_F(NoProcessIsLeftTest, ShutdownEndsTheKeeperWithoutALoss) {
  StartKeeper();
  Spawn(Shell(0, kFamily));
  std::vector<pid_t> pids = ReadPids("pids", 4);
  pids.push_back(client_->pid());
  client_->Shutdown();
  EXPECT_TRUE(RunUntil([&] { return ended_ == 1; }));
  EXPECT_TRUE(std::none_of(pids.begin(), pids.end(), IsAlive));
  EXPECT_TRUE(client_->has_ended());
  EXPECT_TRUE(ListChildren().empty());
  EXPECT_TRUE(lost_.empty());
}

TEST_F(NoProcessIsLeftTest, KillOrphansSparesKnownChildrenAndTheirFamilies) {
  BecomeSubreaper();
  const auto start_shell = [&](const char* script) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setenv("FOLDER", folder_.c_str(), 1);
      ::execl("/bin/sh", "sh", "-c", script, nullptr);
      ::_exit(127);
    }
    return pid;
  };
  const pid_t known =
      start_shell("tail -f /dev/null & echo $! >> $FOLDER/known; echo $$ >> $FOLDER/known; wait");
  const pid_t orphan = start_shell(
      "setsid tail -f /dev/null & echo $! >> $FOLDER/orphan; echo $$ >> $FOLDER/orphan; wait");
  const std::vector<pid_t> kept = ReadPids("known", 2);
  const std::vector<pid_t> doomed = ReadPids("orphan", 2);
  ASSERT_EQ(doomed.back(), orphan);
  EXPECT_TRUE(RunUntilNoOrphanIsLeft({known}));
  EXPECT_TRUE(std::none_of(doomed.begin(), doomed.end(), IsAlive));
  EXPECT_TRUE(std::all_of(kept.begin(), kept.end(), IsAlive));
  EXPECT_TRUE(IsAlive(::getppid()));
  {
    const SparedChild spared(known);
    EXPECT_EQ(KillOrphans({}), 0);
    EXPECT_TRUE(std::all_of(kept.begin(), kept.end(), IsAlive));
  }
}

}  // namespace
}  // namespace fsdprun
