#include "launcher/run/child_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using Reach = ChildProcess::Reach;
using Stream = ChildProcess::Stream;

/// A shell and a program of its own. What both have open is at its end when both have ended.
class ChildProcessTest : public ::testing::Test {
 protected:
  void Start(Reach reach) {
    child_ = std::make_unique<ChildProcess>(
        loop_,
        ChildProcess::Hooks{[this](ChildProcess::Pipes pipes) { pipes_ = std::move(pipes); },
                            [this](int code) { code_ = code; },
                            [](const absl::Status& why) { ADD_FAILURE() << why; }},
        reach);
    child_->Start({"/bin/sh", "-c", "sleep 1000 & echo $!; wait"}, {{"PATH", "/usr/bin:/bin"}},
                  {Stream::kNothing, Stream::kPipe, Stream::kOfLauncher});
    ASSERT_TRUE(waiter_.PollUntil([this] {
      std::array<char, 64> text{};
      const ssize_t size =
          pipes_[1].valid() ? ::read(pipes_[1].get(), text.data(), text.size() - 1) : 0;
      program_ = size > 0 ? std::atoi(text.data()) : 0;
      return program_ > 0;
    }));
  }
  bool IsAtEnd() {
    char byte = 0;
    return ::read(pipes_[1].get(), &byte, 1) == 0;
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<ChildProcess> child_;
  ChildProcess::Pipes pipes_;
  std::optional<int> code_;
  pid_t program_ = 0;
};

TEST_F(ChildProcessTest, ASignalReachesItAlone) {
  Start(Reach::kProcess);
  child_->Signal(SIGTERM);
  EXPECT_TRUE(waiter_.PollUntil([this] { return code_.has_value(); }));
  EXPECT_EQ(code_, 128 + SIGTERM);
  EXPECT_FALSE(IsAtEnd());
  EXPECT_EQ(::kill(program_, SIGKILL), 0);
}

TEST_F(ChildProcessTest, OrItsGroup) {
  Start(Reach::kGroup);
  child_->Signal(SIGTERM);
  EXPECT_TRUE(waiter_.PollUntil([this] { return code_.has_value() && IsAtEnd(); }));
}

TEST_F(ChildProcessTest, SoDoesItsDeath) {
  Start(Reach::kGroup);
  child_->Kill();
  EXPECT_TRUE(waiter_.PollUntil([this] { return IsAtEnd(); }));
  EXPECT_EQ(code_, std::nullopt);
}

}  // namespace
}  // namespace fsdprun
