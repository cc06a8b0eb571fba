#include "launcher/run/child_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/launcher/run/hanging_program.h"
#include "tests/unit/launcher/run/own_children.h"

namespace fsdprun {
namespace {

using ::testing::EndsWith;

class ChildCommandTest : public testing::Test {
 protected:
  void Run(const std::string& script, ChildCommand::Reads reads = ChildCommand::Reads::kErrors) {
    Start({"sh", "-c", script}, reads);
  }
  void Start(const std::vector<std::string>& command,
             ChildCommand::Reads reads = ChildCommand::Reads::kErrors) {
    ChildCommand::Hooks hooks;
    hooks.on_lines = [this](absl::string_view lines) { absl::StrAppend(&lines_, lines); };
    hooks.has_room = [this] { return has_room_; };
    hooks.on_end = [this](int code) {
      code_ = code;
      waiter_.Notice();
    };
    hooks.on_failure = [this](const absl::Status& why) {
      failure_ = why;
      waiter_.Notice();
    };
    child_ = std::make_unique<ChildCommand>(loop_, reads, std::move(hooks));
    child_->Start(command, {{"PATH", "/usr/bin:/bin"}});
  }
  int End() {
    EXPECT_TRUE(waiter_.RunUntil([this] { return code_.has_value(); }));
    return code_.value_or(-1);
  }
  absl::Status Failure() {
    EXPECT_TRUE(waiter_.RunUntil([this] { return !failure_.ok(); }));
    return failure_;
  }
  void AwaitBegin() {
    ASSERT_TRUE(waiter_.PollUntil([this] { return child_->is_running(); }));
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<ChildCommand> child_;
  std::string lines_;
  bool has_room_ = true;
  std::optional<int> code_;
  absl::Status failure_;
};

TEST_F(ChildCommandTest, EndsAfterItsLastLine) {
  Run("echo one >&2; printf two >&2; exit 3");
  EXPECT_EQ(End(), 3);
  EXPECT_EQ(lines_, "one\ntwo\n");
}

TEST_F(ChildCommandTest, SaysWhatIsAskedFor) {
  for (const auto reads : {ChildCommand::Reads::kErrors, ChildCommand::Reads::kAll}) {
    lines_.clear();
    code_.reset();
    Run("echo; echo error >&2", reads);
    EXPECT_EQ(End(), 0);
    EXPECT_EQ(lines_, reads == ChildCommand::Reads::kAll ? "\nerror\n" : "error\n");
  }
}

TEST_F(ChildCommandTest, EndsThoughTheReaderOfItsLinesHasStopped) {
  has_room_ = false;
  Run("echo last >&2; exit 3");
  EXPECT_EQ(End(), 3);
  EXPECT_EQ(lines_, "last\n");
}

TEST_F(ChildCommandTest, WaitsForNobodyElseWithItsStandardError) {
  Run("tail -f /dev/null & echo $! >&2; exit 3");
  EXPECT_EQ(End(), 3);
  ASSERT_THAT(lines_, EndsWith("\n"));
  EXPECT_EQ(::kill(std::stoi(lines_), SIGKILL), 0);
}

TEST_F(ChildCommandTest, ProgramThatIsNotThereIsNamedAsItWasGiven) {
  Start({"/none/scontrol"});
  EXPECT_EQ(Failure(), absl::NotFoundError("cannot start /none/scontrol: no such program"));
  failure_ = absl::OkStatus();
  Start({"no-such-program"});
  EXPECT_EQ(Failure(),
            absl::NotFoundError("cannot start no-such-program: no such program on PATH"));
}

TEST_F(ChildCommandTest, SignalEndsIt) {
  Run("exec tail -f /dev/null");
  AwaitBegin();
  child_->Signal(SIGKILL);
  EXPECT_EQ(End(), 128 + SIGKILL);
}

TEST_F(ChildCommandTest, KilledOneSaysNothingAndIsGone) {
  const std::filesystem::path fifo = ::testing::TempDir() + absl::StrCat("/said.", ::getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::set<std::string> before = OwnChildren();
  Run(absl::StrCat("echo last >&2; echo said >", fifo.string(), "; exec tail -f /dev/null"));
  AwaitBegin();
  std::string word;
  std::ifstream(fifo) >> word;  // The loop does not run: what was said is still in the pipe.
  lines_.clear();
  child_->Kill();
  EXPECT_FALSE(child_->is_running());
  EXPECT_EQ(OwnChildren(), before);
  child_->Kill();
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  EXPECT_EQ(lines_, "");
  EXPECT_FALSE(code_.has_value());
  std::filesystem::remove(fifo);
}

// As by who clears away what a keeper that was lost has left.
TEST_F(ChildCommandTest, OneThatSomebodyElseHasWaitedForHasEnded) {
  Run("echo $$ >&2; exec tail -f /dev/null");
  ASSERT_TRUE(waiter_.PollUntil([this] { return !lines_.empty(); }));
  const pid_t child_pid = std::stoi(lines_);
  child_->Signal(SIGKILL);
  ASSERT_GT(::waitpid(child_pid, nullptr, 0), 0);
  EXPECT_EQ(End(), 255);
}

TEST_F(ChildCommandTest, NoProcessIsLeftThatNobodyWatches) {
  const std::set<std::string> before = OwnChildren();
  bool is_filtered = false;
  std::thread([&] {
    is_filtered = FailFromNowOn({.number = SYS_pidfd_open, .error = EMFILE});
    Run("exec tail -f /dev/null");
  }).join();
  ASSERT_TRUE(is_filtered) << "this kernel takes no filter of system calls";
  EXPECT_EQ(Failure(), absl::UnavailableError("start sh: " + ErrorText(EMFILE)));
  EXPECT_EQ(OwnChildren(), before);
}

TEST_F(ChildCommandTest, MachineWithoutRoomForAThreadIsNoReasonToEnd) {
  bool is_filtered = false;
  std::thread([&] {
    is_filtered = FailFromNowOn({.number = SYS_clone3, .error = EAGAIN}) &&
                  FailFromNowOn({.number = SYS_clone, .error = EAGAIN});
    Run("exit 0");
  }).join();
  ASSERT_TRUE(is_filtered) << "this kernel takes no filter of system calls";
  EXPECT_EQ(Failure(), absl::UnavailableError("start sh: " + ErrorText(EAGAIN)));
}

class HangingProgramTest : public ChildCommandTest {
 protected:
  void SetUp() override {
    before_ = OwnChildren();
    Start({program_.path()});
    ASSERT_TRUE(waiter_.PollUntil([this] { return program_.IsWaitedFor(); }));
    EXPECT_FALSE(child_->is_running());
    EXPECT_TRUE(child_->is_starting());
  }
  void Answer() { program_.Answer(); }

  HangingProgram program_{"exec tail -f /dev/null"};
  std::set<std::string> before_;
};

TEST_F(HangingProgramTest, BeginsWhenItsFileSystemAnswers) {
  Answer();
  AwaitBegin();
  EXPECT_FALSE(child_->is_starting());
  child_->Signal(SIGKILL);
  EXPECT_EQ(End(), 128 + SIGKILL);
}

TEST_F(HangingProgramTest, SignalReachesItAsSoonAsItRuns) {
  child_->Signal(SIGTERM);
  Answer();
  EXPECT_EQ(End(), 128 + SIGTERM);
}

TEST_F(HangingProgramTest, KilledOneEndsAsSoonAsItRuns) {
  child_->Kill();
  EXPECT_FALSE(child_->is_starting());
  Answer();
  EXPECT_TRUE(waiter_.PollUntil([this] { return OwnChildren() == before_; }));
  EXPECT_FALSE(code_.has_value());
}

TEST_F(HangingProgramTest, EndsWithTheOneWhoWaitsForIt) {
  child_.reset();
  Answer();
  EXPECT_TRUE(waiter_.PollUntil([this] { return OwnChildren() == before_; }));
}

}  // namespace
}  // namespace fsdprun
