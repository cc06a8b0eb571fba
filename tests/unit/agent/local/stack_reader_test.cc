#include "agent/local/stack_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "agent/process/process_scan.h"
#include "base/spawn.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(IsPythonTest, ByItsNameOrItsLibrary) {
  EXPECT_TRUE(IsPython("/usr/bin/python3.11", ""));
  EXPECT_TRUE(IsPython("/opt/train", "7f00 r-xp /usr/lib/libpython3.11.so.1.0\n"));
  EXPECT_FALSE(IsPython("/opt/python-free/train", "7f00 r-xp /usr/lib/libc.so.6\n"));
}

class StackReaderTest : public testing::Test {
 protected:
  StackReaderTest() : folder_(testing::TempDir() + "stack_reader_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
    const auto pid = SpawnDetached(
        {.path = "/bin/sleep", .command = {"sleep", "1000"}, .environment = {}, .descriptors = {}});
    EXPECT_TRUE(pid.ok());
    worker_ = pid.value_or(0);
    EXPECT_TRUE(waiter_.PollUntil([this] {
      return WaitsIn().find("nanosleep") != std::string::npos;
    })) << "it has not begun to sleep";
  }
  ~StackReaderTest() override {
    ::kill(worker_, SIGKILL);
    ::waitpid(worker_, nullptr, 0);
    RemoveFolder(folder_);
  }

  /// In the kernel.
  std::string WaitsIn() const {
    std::ifstream file("/proc/" + std::to_string(worker_) + "/wchan");
    std::string name;
    std::getline(file, name);
    return name;
  }
  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    ::chmod(path.c_str(), 0755);
    return path;
  }
  v1::WorkerStacks Read(const StackReader::Programs& programs,
                        Duration limit = StackReader::kLimit) {
    StackReader reader(
        loop_, [programs] { return programs; }, limit);
    v1::WorkerStacks result;
    bool is_over = false;
    reader.Read(
        {{.rank = 7, .pid = worker_}}, is_wanted_,
        [&](const v1::WorkerStacks& stacks) { result = stacks; },
        [&] {
          is_over = true;
          waiter_.Notice();
        });
    EXPECT_TRUE(waiter_.RunUntil([&] { return is_over; }));
    EXPECT_EQ(result.rank(), 7);
    EXPECT_EQ(result.pid(), worker_);
    return result;
  }

  const std::string folder_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  pid_t worker_ = 0;
  const std::shared_ptr<std::atomic<bool>> is_wanted_ = std::make_shared<std::atomic<bool>>(true);
};

TEST_F(StackReaderTest, SaysWhereAProcessIsAndLetsItGoOn) {
  const v1::WorkerStacks stacks = Read({.native = FSDPRUN_STACKS_BINARY, .python = ""});
  EXPECT_THAT(stacks.text(), AllOf(HasSubstr("\"sleep\""), HasSubstr("nanosleep")));
  EXPECT_EQ(stacks.reader(), "fsdp-stacks");
  EXPECT_EQ(stacks.problem(), "");
  EXPECT_GT(stacks.stopped_ns(), 0);
  EXPECT_EQ(::kill(worker_, 0), 0);
  std::ifstream status("/proc/" + std::to_string(worker_) + "/status");
  const std::string text((std::istreambuf_iterator<char>(status)), {});
  EXPECT_THAT(text, AllOf(HasSubstr("State:\tS"), HasSubstr("TracerPid:\t0\n")));
}

TEST_F(StackReaderTest, AStoppedProcessIsReadAndStaysStopped) {
  ::kill(worker_, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(worker_, &status, WUNTRACED), worker_);
  const v1::WorkerStacks stacks = Read({.native = FSDPRUN_STACKS_BINARY, .python = ""});
  EXPECT_THAT(stacks.text(), HasSubstr("#0"));
  std::ifstream file("/proc/" + std::to_string(worker_) + "/status");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("State:\tT"));
}

TEST_F(StackReaderTest, WithoutAProgramItSaysWhatIsMissing) {
  EXPECT_THAT(Read({}).problem(), HasSubstr("fsdp-stacks is not beside fsdp-keeper"));
}

TEST_F(StackReaderTest, AProgramThatFailsIsQuoted) {
  const v1::WorkerStacks stacks =
      Read({.native = Script("fails", "echo it is forbidden; exit 1"), .python = ""});
  EXPECT_THAT(stacks.problem(), AllOf(HasSubstr("ended with 1"), HasSubstr("it is forbidden")));
}

TEST_F(StackReaderTest, AProgramThatHangsIsEndedAndWhatItSaidIsTold) {
  const v1::WorkerStacks stacks =
      Read({.native = Script("hangs", "echo stopped_ns 5; echo thread 1; exec sleep 1000"),
            .python = ""},
           std::chrono::milliseconds(300));
  EXPECT_THAT(stacks.problem(), HasSubstr("has not ended within"));
  EXPECT_THAT(stacks.text(), HasSubstr("thread 1"));
}

TEST_F(StackReaderTest, AReaderThatIsKilledLeavesNoStop) {
  const std::string stop = "kill -STOP " + std::to_string(worker_) + "; exec sleep 1000";
  Read({.native = Script("stops", stop), .python = ""}, std::chrono::milliseconds(300));
  ProcessInfo process;
  EXPECT_TRUE(
      waiter_.PollUntil([&] { return ReadProcess(worker_, process) && process.state == 'S'; }));
}

TEST_F(StackReaderTest, ThatSomethingIsLeftOutIsSaid) {
  const v1::WorkerStacks stacks =
      Read({.native = Script("talks", "echo stopped_ns 5; yes thread"), .python = ""});
  EXPECT_THAT(stacks.text(), HasSubstr("said more, which is left out"));
  EXPECT_LE(stacks.text().size(), 2 * StackReader::kMaxTextBytes);
}

TEST_F(StackReaderTest, WhatIsNotWantedAnyMoreIsNotRead) {
  *is_wanted_ = false;
  const StackReader::Programs programs{.native = Script("marks", "touch " + folder_ + "/was_run"),
                                       .python = ""};
  StackReader reader(loop_, [programs] { return programs; });
  bool is_over = false;
  reader.Read(
      {{.rank = 7, .pid = worker_}}, is_wanted_, [](const v1::WorkerStacks&) { FAIL(); },
      [&] {
        is_over = true;
        waiter_.Notice();
      });
  ASSERT_TRUE(waiter_.RunUntil([&] { return is_over; }));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/was_run"));
}

TEST_F(StackReaderTest, AnotherProcessOfThatNumberIsNotTheWorker) {
  const StackReader::Programs programs{.native = FSDPRUN_STACKS_BINARY, .python = ""};
  StackReader reader(loop_, [programs] { return programs; });
  v1::WorkerStacks result;
  bool is_over = false;
  reader.Read(
      {{.rank = 7, .pid = worker_, .start_time_ticks = 1}}, is_wanted_,
      [&](const v1::WorkerStacks& stacks) { result = stacks; },
      [&] {
        is_over = true;
        waiter_.Notice();
      });
  ASSERT_TRUE(waiter_.RunUntil([&] { return is_over; }));
  EXPECT_EQ(result.problem(), "the worker has ended");
}

TEST_F(StackReaderTest, FindsTheProgramsBesideTheKeeperAndOnThePath) {
  const std::string native = Script("fsdp-stacks", "");
  const std::string python = Script("py-spy", "");
  const StackReader::Programs found =
      FindStackPrograms(folder_ + "/fsdp-keeper", "/nonexistent::" + folder_);
  EXPECT_EQ(found.native, native);
  EXPECT_EQ(found.python, python);
  const StackReader::Programs none = FindStackPrograms("/nonexistent/fsdp-keeper", "");
  EXPECT_EQ(none.native + none.python, "");
}

}  // namespace
}  // namespace fsdprun
