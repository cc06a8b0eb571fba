#include "launcher/run/child_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class ChildCommandTest : public testing::Test {
 protected:
  absl::Status Run(const std::string& script,
                   ChildCommand::Reads reads = ChildCommand::Reads::kErrors) {
    ChildCommand::Hooks hooks;
    hooks.on_lines = [this](absl::string_view lines) { absl::StrAppend(&lines_, lines); };
    hooks.has_room = [this] { return has_room_; };
    hooks.on_end = [this](int code) {
      code_ = code;
      waiter_.Notice();
    };
    child_ = std::make_unique<ChildCommand>(loop_, reads, std::move(hooks));
    return child_->Start({"sh", "-c", script}, {{"PATH", "/usr/bin:/bin"}});
  }
  int End() {
    EXPECT_TRUE(waiter_.RunUntil([this] { return code_.has_value(); }));
    return code_.value_or(-1);
  }

  /// Of all threads, those included that have ended and that nobody has waited for. A sanitizer may
  /// have one of its own.
  static std::set<std::string> OwnChildren() {
    std::set<std::string> children;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream in(thread.path() / "children");
      for (std::string pid; in >> pid;) {
        children.insert(pid);
      }
    }
    return children;
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<ChildCommand> child_;
  std::string lines_;
  bool has_room_ = true;
  std::optional<int> code_;
};

TEST_F(ChildCommandTest, EndsAfterItsLastLine) {
  ASSERT_TRUE(Run("echo one >&2; printf two >&2; exit 3").ok());
  EXPECT_EQ(End(), 3);
  EXPECT_EQ(lines_, "one\ntwo\n");
}

TEST_F(ChildCommandTest, SaysWhatIsAskedFor) {
  for (const auto reads : {ChildCommand::Reads::kErrors, ChildCommand::Reads::kAll}) {
    lines_.clear();
    code_.reset();
    ASSERT_TRUE(Run("echo; echo error >&2", reads).ok());
    EXPECT_EQ(End(), 0);
    EXPECT_EQ(lines_, reads == ChildCommand::Reads::kAll ? "\nerror\n" : "error\n");
  }
}

TEST_F(ChildCommandTest, EndsThoughTheReaderOfItsLinesHasStopped) {
  has_room_ = false;
  ASSERT_TRUE(Run("echo last >&2; exit 3").ok());
  EXPECT_EQ(End(), 3);
  EXPECT_EQ(lines_, "last\n");
}

TEST_F(ChildCommandTest, WaitsForNobodyElseWithItsStandardError) {
  ASSERT_TRUE(Run("tail -f /dev/null & echo $! >&2; exit 3").ok());
  EXPECT_EQ(End(), 3);
  ASSERT_THAT(lines_, EndsWith("\n"));
  EXPECT_EQ(::kill(std::stoi(lines_), SIGKILL), 0);
}

TEST_F(ChildCommandTest, ProgramThatIsNotThereIsNamedAsItWasGiven) {
  ChildCommand command(loop_, ChildCommand::Reads::kErrors, {});
  EXPECT_EQ(command.Start({"/none/scontrol"}, {}).message(),
            "cannot start /none/scontrol: no such program");
  EXPECT_EQ(command.Start({"no-such-program"}, {}).message(),
            "cannot start no-such-program: no such program on PATH");
}

TEST_F(ChildCommandTest, SignalEndsIt) {
  ASSERT_TRUE(Run("exec tail -f /dev/null").ok());
  child_->Signal(SIGKILL);
  EXPECT_EQ(End(), 128 + SIGKILL);
}

TEST_F(ChildCommandTest, KilledOneSaysNothingAndIsGone) {
  const std::set<std::string> before = OwnChildren();
  ASSERT_TRUE(Run("exec tail -f /dev/null").ok());
  child_->Kill();
  EXPECT_FALSE(child_->is_running());
  EXPECT_EQ(OwnChildren(), before);
  child_->Kill();
  EXPECT_FALSE(code_.has_value());
}

TEST_F(ChildCommandTest, NoProcessIsLeftThatNobodyWatches) {
  rlimit all{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &all), 0);
  // Made now: UBSan's look at the category of errors wants descriptors, the first time.
  const std::string why = ErrorText(EMFILE);
  const std::set<std::string> before = OwnChildren();
  ChildCommand command(loop_, ChildCommand::Reads::kErrors, {});
  // The pipe's ends are the last descriptors that there are; what lies between them is taken.
  const int first = ::dup(0);
  const int second = ::dup(0);
  ASSERT_GE(second, 0);
  ::close(first);
  ::close(second);
  const rlimit few{static_cast<rlim_t>(second + 1), all.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  // Not by way of the test's own functions: UBSan looks at a test's class through a pipe.
  const absl::Status status =
      command.Start({"sh", "-c", "exec tail -f /dev/null"}, {{"PATH", "/usr/bin:/bin"}});
  ::setrlimit(RLIMIT_NOFILE, &all);
  EXPECT_THAT(std::string(status.message()), HasSubstr("watch sh: " + why));
  EXPECT_EQ(OwnChildren(), before);
}

}  // namespace
}  // namespace fsdprun
