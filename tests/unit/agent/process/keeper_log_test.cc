#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <utility>

#include "agent/process/log_queue.h"
#include "tests/unit/agent/process/keeper_fixture.h"

namespace fsdprun {
namespace {

using keeper::Stream;
using testing::HasSubstr;

class KeeperLogTest : public KeeperFixture {};

TEST_F(KeeperLogTest, KeepsTwentyThousandLinesOfBothStreams) {
  StartKeeper();
  for (int rank = 0; rank < 2; ++rank) {
    Spawn(Shell(rank,
                "i=0; while [ $i -lt 20000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"));
  }
  ASSERT_TRUE(RunUntil([&] { return exited_.size() == 2; }));
  for (const auto& [stream, name] :
       {std::pair{Stream::kStdout, "out"}, std::pair{Stream::kStderr, "err"}}) {
    std::string expected;
    for (int i = 0; i < 20'000; ++i) {
      expected += std::string(name) + " " + std::to_string(i) + "\n";
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(log_size_[std::pair(rank, stream)], expected.size());
      EXPECT_TRUE(ReadFile(LogPath(rank, name)) == expected) << LogPath(rank, name);
    }
  }
}

TEST_F(KeeperLogTest, FullDiskSendsTheRestToTheAgent) {
  StartKeeper();
  WorkerSpec spec =
      Shell(0, "echo one; echo two; yes xxxxxxxxxxxxxxx | head -c 3000000; echo last");
  spec.stdout_path = "/dev/full";
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  const std::string& data = log_data_[{0, Stream::kStdout}];
  EXPECT_EQ(data.size(), 3'000'000u + 13);
  EXPECT_THAT(data, testing::StartsWith("one\ntwo\nxxx"));
  EXPECT_THAT(data, testing::EndsWith("last\n"));
  ASSERT_EQ(degraded_.size(), 1u);
  EXPECT_EQ(degraded_[0].error, ENOSPC);
  EXPECT_EQ(degraded_[0].path, "/dev/full");
  EXPECT_EQ(exited_[0].exit_code, 0);
}

TEST_F(KeeperLogTest, StderrTailComesWithTheExitWithOrWithoutALogFile) {
  StartKeeper();
  const std::string words = "yes xxxxxxxxxxxxxxx | head -c 100000 >&2; echo last words >&2; exit ";
  WorkerSpec spec = Shell(0, words + "3");
  spec.stderr_path = "/dev/full";
  Spawn(spec);
  Spawn(Shell(1, "echo short >&2; kill -KILL $$"));
  Spawn(Shell(2, words + "0"));
  ASSERT_TRUE(RunUntil([&] { return exited_.size() == 3; }));
  EXPECT_EQ(exited_[0].stderr_tail.size(), keeper::kStderrTailBytes);
  EXPECT_THAT(exited_[0].stderr_tail, testing::EndsWith("xxx\nlast words\n"));
  EXPECT_TRUE(exited_[0].stderr_is_cut);
  EXPECT_EQ(exited_[1].stderr_tail, "short\n");
  EXPECT_FALSE(exited_[1].stderr_is_cut);
  EXPECT_EQ(exited_[2].stderr_tail, "");
}

TEST_F(KeeperLogTest, FileThatCannotBeCreatedDegradesInsteadOfFailing) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "echo hello >&2");
  std::ofstream(folder_ + "/file") << "no folder";
  spec.stderr_path = folder_ + "/file/err";
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ((log_data_[{0, Stream::kStderr}]), "hello\n");
  ASSERT_EQ(degraded_.size(), 1u);
  EXPECT_EQ(degraded_[0].error, ENOTDIR);
  EXPECT_EQ(degraded_[0].why, "Not a directory");
}

TEST_F(KeeperLogTest, FoldersOfLogFilesAreMade) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "echo hello");
  spec.stdout_path = folder_ + "/attempt_0/0/out";
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(ReadFile(spec.stdout_path), "hello\n");
  EXPECT_TRUE(degraded_.empty());
}

TEST_F(KeeperLogTest, FilesThatOpenLateAreMadeWithTheFirstByte) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "echo hello; exit 3");
  spec.stdout_path = folder_ + "/attempt_0/0/out";
  spec.stderr_path = folder_ + "/attempt_0/0/err";
  spec.opens_stdout_late = true;
  spec.opens_stderr_late = true;
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(ReadFile(spec.stdout_path), "hello\n");
  EXPECT_EQ((log_size_[{0, Stream::kStdout}]), 6u);
  EXPECT_FALSE(std::filesystem::exists(spec.stderr_path));
  EXPECT_TRUE(log_data_.empty());
}

TEST_F(KeeperLogTest, WithoutOutputThereIsNoLogWriter) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "true");
  spec.opens_stdout_late = true;
  spec.opens_stderr_late = true;
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(LogWriterPid(), 0);
  EXPECT_TRUE(degraded_.empty());
}

TEST_F(KeeperLogTest, AFileThatCannotBeMadeLateDegrades) {
  StartKeeper();
  std::ofstream(folder_ + "/file") << "no folder";
  WorkerSpec spec = Shell(0, "echo hello; echo again");
  spec.stdout_path = folder_ + "/file/out";
  spec.opens_stdout_late = true;
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ((log_data_[{0, Stream::kStdout}]), "hello\nagain\n");
  ASSERT_EQ(degraded_.size(), 1u);
  EXPECT_EQ(degraded_[0].error, ENOTDIR);
}

// File systems that hang: see Note [Log writer].

/// A FIFO that nobody reads: opening it for writing does not return.
std::string MakeHangingFile(const std::string& path) {
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  return path;
}

TEST_F(KeeperLogTest, WorkersStartWithoutLogsWhenTheirFilesHang) {
  StartKeeper();
  WorkerSpec hangs = Shell(0, "echo out; echo err >&2; exit 3");
  hangs.stdout_path = MakeHangingFile(folder_ + "/hangs");
  Spawn(hangs);
  Spawn(Shell(1, "echo other"));
  ASSERT_TRUE(RunUntil([&] { return exited_.size() == 2; }));
  EXPECT_EQ(exited_[0].exit_code, 3);
  EXPECT_EQ((log_data_[{0, Stream::kStdout}]), "out\n");
  EXPECT_EQ((log_data_[{0, Stream::kStderr}]), "err\n");
  EXPECT_EQ((log_data_[{1, Stream::kStdout}]), "other\n");
  ASSERT_EQ(degraded_.size(), 4u);
  EXPECT_EQ(degraded_[0].path, hangs.stdout_path);
  EXPECT_EQ(degraded_[0].why, "the file system did not answer within 1 s");

  // The next start has a writer that works again.
  exited_.clear();
  Spawn(Shell(2, "echo logged"));
  ASSERT_TRUE(RunUntilExited(2));
  EXPECT_EQ(ReadFile(LogPath(2, "out")), "logged\n");
}

TEST_F(KeeperLogTest, DeathsAreSeenWhileAFileSystemHangs) {
  StartKeeper();
  Spawn(Shell(0, "echo >> $FOLDER/ready; exec tail -f /dev/null"));
  ReadPids("ready", 1);
  WorkerSpec hangs = Shell(1, "exec tail -f /dev/null");
  hangs.stdout_path = MakeHangingFile(folder_ + "/hangs");
  Spawn(hangs);
  client_->Signal(0, SIGKILL, /*group=*/false);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].signal, SIGKILL);
  EXPECT_EQ(degraded_before_exit_[0], 0u) << "it was reported after the hang only";
  // A stop that comes now reaches the worker once it starts.
  client_->Signal(1, SIGTERM, /*group=*/true);
  ASSERT_TRUE(RunUntilExited(1));
  EXPECT_EQ(exited_[1].signal, SIGTERM);
}

TEST_F(KeeperLogTest, AFileThatHangsWhenItIsOpenedLateDegradesWhileTheWorkerRuns) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "echo hello; exec tail -f /dev/null");
  spec.stdout_path = MakeHangingFile(folder_ + "/hangs");
  spec.opens_stdout_late = true;
  Spawn(spec);
  ASSERT_TRUE(RunUntil([&] { return !log_data_.empty(); }))
      << "nothing is shown of a worker that runs";
  EXPECT_EQ((log_data_[{0, Stream::kStdout}]), "hello\n");
  EXPECT_TRUE(exited_.empty());
  EXPECT_EQ(degraded_.front().why, "the file system did not answer within 1 s");
  client_->KillAll();
  ASSERT_TRUE(RunUntilExited(0));
}

TEST_F(KeeperLogTest, WorkersThatWaitForTheirFilesAreNotStartedAfterAKill) {
  StartKeeper();
  WorkerSpec hangs = Shell(0, "true");
  hangs.stdout_path = MakeHangingFile(folder_ + "/hangs");
  Spawn(hangs);
  client_->KillAll();
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  ASSERT_EQ(spawn_failed_.size(), 1u);
  EXPECT_EQ(spawn_failed_[0].error, ECANCELED);
  EXPECT_TRUE(spawned_.empty());
}

/// Numbered lines, more than all queues on the way to a log file hold.
const char kManyLines[] = "i=0; while [ $i -lt 200000 ]; do echo line $i; i=$((i+1)); done";

std::string ManyLines() {
  std::string lines;
  for (int i = 0; i < 200'000; ++i) {
    lines += "line " + std::to_string(i) + "\n";
  }
  return lines;
}

TEST_F(KeeperLogTest, NothingIsLostOrShownTwiceWhenTheLogWriterStops) {
  for (const int signal : {SIGSTOP, SIGKILL}) {
    exited_.clear();
    degraded_.clear();
    StartKeeper();
    Spawn(Shell(0, kManyLines));
    ASSERT_TRUE(RunUntil([&] { return log_size_[std::pair(0, Stream::kStdout)] > 0; }));
    ASSERT_EQ(::kill(LogWriterPid(), signal), 0);
    ASSERT_TRUE(RunUntilExited(0));
    EXPECT_TRUE(Shown(0, Stream::kStdout, LogPath(0, "out")) == ManyLines()) << signal;
    EXPECT_FALSE((log_data_[{0, Stream::kStdout}].empty()));
    ASSERT_EQ(degraded_.size(), 2u);
    EXPECT_THAT(degraded_[0].why, HasSubstr(signal == SIGSTOP ? "did not answer" : "died"));
    client_.reset();
    log_size_.clear();
    log_data_.clear();
  }
}

/// A FIFO in the place of a log file, read every 100 ms: the log writer writes no faster.
class SlowLog {
 public:
  SlowLog(EventLoop& loop, const std::string& path)
      : loop_(loop),
        file_(::open(MakeHangingFile(path).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    Read();
  }
  ~SlowLog() { loop_.Cancel(timer_); }
  SlowLog(const SlowLog&) = delete;
  SlowLog& operator=(const SlowLog&) = delete;
  void BeFast() { pause_ = std::chrono::milliseconds(1); }

 private:
  void Read() {
    char piece[16 << 10];
    [[maybe_unused]] const ssize_t got = ::read(file_.get(), piece, sizeof(piece));
    timer_ = loop_.At(MonoNow() + pause_, [this] { Read(); });
  }

  EventLoop& loop_;
  const UniqueFd file_;
  Duration pause_ = std::chrono::milliseconds(100);
  EventLoop::TimerId timer_ = 0;
};

TEST_F(KeeperLogTest, ADeathIsReportedBeforeASlowLogHasTakenEverything) {
  constexpr size_t kSize = 600'000;
  StartKeeper();
  SlowLog log(loop_, folder_ + "/slow");
  WorkerSpec slow = Shell(0, "yes xxxxxxxxxxxxxxx | head -c 600000; echo last words >&2; exit 3");
  slow.stdout_path = folder_ + "/slow";
  const auto key = std::pair(0, Stream::kStdout);
  Spawn(slow);
  uint64_t size_at_exit = kSize;
  ASSERT_TRUE(RunUntil([&] {
    const bool has_exited = exited_.count(0) > 0;
    size_at_exit = has_exited ? log_size_[key] : kSize;
    return has_exited;
  }));
  EXPECT_LT(size_at_exit, kSize) << "the report has waited for the log";
  EXPECT_EQ(exited_[0].exit_code, 3);
  EXPECT_EQ(exited_[0].stderr_tail, "last words\n");
  // What is late comes before the end of all, and completely.
  log.BeFast();
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  EXPECT_EQ(log_size_[key] + log_data_[key].size(), kSize);
  EXPECT_TRUE(degraded_.empty());
}

// The queue of the log writer is full when the worker dies: its last words are still in the pipe.
TEST_F(KeeperLogTest, LastWordsDoNotWaitForAFullQueue) {
  StartKeeper();
  SlowLog log(loop_, folder_ + "/slow");
  WorkerSpec slow = Shell(0, "yes xxxxxxxxxxxxxxx & sleep 0.5; echo last words >&2; kill -KILL $$");
  slow.stdout_path = folder_ + "/slow";
  Spawn(slow);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].signal, SIGKILL);
  EXPECT_EQ(exited_[0].stderr_tail, "last words\n");
  EXPECT_LT((log_size_[{0, Stream::kStdout}]), keeper::LogQueue::kMaxBytes);
  log.BeFast();
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  EXPECT_TRUE(degraded_.empty());
  EXPECT_EQ(ReadFile(LogPath(0, "err")), "last words\n");
  EXPECT_EQ((log_size_[{0, Stream::kStderr}]), 11u);
}

TEST_F(KeeperLogTest, ALogWriterThatDiedIsReapedWhileWorkersRun) {
  StartKeeper();
  Spawn(Shell(0, "while :; do echo x; sleep 0.01; done"));
  ASSERT_TRUE(RunUntil([&] { return log_size_[std::pair(0, Stream::kStdout)] > 0; }));
  const pid_t writer = LogWriterPid();
  ASSERT_EQ(::kill(writer, SIGKILL), 0);
  EXPECT_TRUE(waiter_.PollUntil([&] {
    ProcessInfo info;
    return !ReadProcess(writer, info);
  }));
  EXPECT_TRUE(exited_.empty());
}

TEST_F(KeeperLogTest, TheLogWriterEndsWithTheKeeperEvenIfItIsStopped) {
  StartKeeper();
  Spawn(Shell(0, "true"));
  ASSERT_TRUE(RunUntilExited(0));
  const pid_t writer = LogWriterPid();
  ASSERT_GT(writer, 0);
  EXPECT_TRUE(RunUntil([&] { return all_gone_ == 1; })) << "it is taken for what a worker left";
  ::kill(writer, SIGSTOP);
  ::kill(client_->pid(), SIGKILL);
  EXPECT_TRUE(RunUntilDead({writer}));
}

}  // namespace
}  // namespace fsdprun
