// Signals to single processes: only those of the job get them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/agent/process/keeper_fixture.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SignalProcessTest : public KeeperFixture {
 protected:
  static ProcessInfo Process(pid_t pid) {
    ProcessInfo process;
    EXPECT_TRUE(ReadProcess(pid, process)) << pid;
    return process;
  }
};

TEST_F(SignalProcessTest, ReachesAWorkerAndWhatItHasStarted) {
  StartKeeper();
  Spawn(Shell(0,
              "setsid sh -c 'echo $$ >> $FOLDER/pids; exec tail -f /dev/null' & "
              "wait $!; echo $? > $FOLDER/child; exec tail -f /dev/null"));
  const std::vector<pid_t> child = ReadPids("pids", 1);
  ASSERT_EQ(child.size(), 1u);
  client_->SignalProcess(Process(child[0]), SIGUSR1);
  EXPECT_THAT(ReadPids("child", 1), ElementsAre(128 + SIGUSR1));
  client_->SignalProcess(Process(spawned_[0].pid), SIGUSR2);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].signal, SIGUSR2);
  EXPECT_TRUE(notes_.empty());
}

TEST_F(SignalProcessTest, IsRefusedForAnyOtherProcess) {
  StartKeeper();
  client_->SignalProcess(Process(::getpid()), SIGKILL);
  client_->SignalProcess(Process(client_->pid()), SIGKILL);
  ASSERT_TRUE(RunUntil([&] { return notes_.size() == 2; }));
  EXPECT_THAT(notes_[0], HasSubstr("refused to send signal 9 to process"));
  EXPECT_TRUE(client_->is_alive());
}

TEST_F(SignalProcessTest, IsDroppedIfTheNumberHasANewOwner) {
  StartKeeper();
  Spawn(Shell(0, "echo $$ > $FOLDER/pid; exec tail -f /dev/null"));
  const std::vector<pid_t> worker = ReadPids("pid", 1);
  ASSERT_EQ(worker.size(), 1u);
  ProcessInfo earlier = Process(worker[0]);
  --earlier.start_time_ticks;
  client_->SignalProcess(earlier, SIGKILL);
  client_->SignalProcess(Process(worker[0]), SIGUSR1);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].signal, SIGUSR1);
  EXPECT_TRUE(notes_.empty());
}

}  // namespace
}  // namespace fsdprun
