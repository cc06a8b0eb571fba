#include "launcher/run/ssh_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/launcher/run/hanging_program.h"
#include "tests/unit/launcher/run/own_children.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// As ssh and a node's part that are there.
const char kHello[] = "echo fsdprun-node-is-here 3 0.1 | tee /dev/stderr\n";

class SshConnectionTest : public testing::Test {
 protected:
  void Run(const std::string& script) { Start({"sh", "-c", script}); }
  void Start(const std::vector<std::string>& command) {
    SshConnection::Hooks hooks;
    hooks.on_hello = [this](const BuildInfo& build) {
      build_ = build;
      waiter_.Notice();
    };
    hooks.on_lines = [this](ConsoleStream stream, absl::string_view lines) {
      absl::StrAppend(stream == ConsoleStream::kOut ? &out_ : &error_, lines);
    };
    hooks.has_room = [](ConsoleStream) { return true; };
    hooks.on_end = [this](int code) {
      code_ = code;
      waiter_.Notice();
    };
    hooks.on_failure = [this](const absl::Status& why) {
      failure_ = why;
      waiter_.Notice();
    };
    ssh_ = std::make_unique<SshConnection>(loop_, std::move(hooks));
    ssh_->Start(command, {{"PATH", "/usr/bin:/bin"}});
  }
  int End() {
    EXPECT_TRUE(waiter_.RunUntil([this] { return code_.has_value(); }));
    return code_.value_or(-1);
  }
  void AwaitHello() {
    ASSERT_TRUE(waiter_.RunUntil([this] { return build_.has_value(); }));
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<SshConnection> ssh_;
  std::optional<BuildInfo> build_;
  std::string out_;
  std::string error_;
  std::optional<int> code_;
  absl::Status failure_;
};

TEST_F(SshConnectionTest, WhatIsNotThereIsSaidWithWhatToDo) {
  Start({"/none/ssh"});
  EXPECT_TRUE(ssh_->is_open());
  ASSERT_TRUE(waiter_.RunUntil([this] { return !failure_.ok(); }));
  EXPECT_TRUE(absl::IsNotFound(failure_));
  EXPECT_THAT(
      std::string(failure_.message()),
      AllOf(HasSubstr("cannot start /none/ssh: no such program here"), HasSubstr("--ssh-command")));
  EXPECT_FALSE(ssh_->is_open());
}

TEST_F(SshConnectionTest, WordsBeforeTheHelloAreNoOutput) {
  Run("echo welcome; echo banner >&2; exit 255");
  EXPECT_EQ(End(), 255);
  EXPECT_EQ(out_ + error_, "");
  EXPECT_THAT(ssh_->last_words(), AllOf(HasSubstr("welcome\n"), HasSubstr("banner\n")));
  EXPECT_FALSE(ssh_->has_said_hello());
}

TEST_F(SshConnectionTest, PassesOnBothStreamsAndEndsAfterTheLastLine) {
  Run(absl::StrCat("echo welcome\n", kHello, "echo one; printf two >&2; exit 3"));
  EXPECT_EQ(End(), 3);
  EXPECT_EQ(out_, "one\n");
  EXPECT_EQ(error_, "two\n");
  ASSERT_TRUE(build_.has_value());
  EXPECT_EQ(build_->release, "0.1");
}

TEST_F(SshConnectionTest, SendsAndHangsUp) {
  Run(absl::StrCat(kHello, "cat"));
  AwaitHello();
  const std::string text(1u << 20, 'x');  // More than a pipe holds.
  ssh_->Send(text + "\n");
  ASSERT_TRUE(waiter_.PollUntil([&] { return out_.size() == text.size() + 1; }));
  ssh_->HangUp();
  EXPECT_EQ(End(), 0);
}

TEST_F(SshConnectionTest, KilledOneSaysNothing) {
  const std::set<std::string> before = OwnChildren();
  Run(absl::StrCat(kHello, "exec tail -f /dev/null"));
  AwaitHello();
  ssh_->Kill();
  EXPECT_FALSE(ssh_->is_open());
  EXPECT_EQ(OwnChildren(), before);
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  EXPECT_FALSE(code_.has_value());
}

class HangingSshTest : public SshConnectionTest {
 protected:
  void SetUp() override {
    Start({ssh_program_.path()});
    // The loop runs all the while.
    ASSERT_TRUE(waiter_.PollUntil([this] { return ssh_program_.IsWaitedFor(); }));
    EXPECT_TRUE(ssh_->is_open());
    EXPECT_TRUE(ssh_->is_starting());
  }

  const std::set<std::string> before_ = OwnChildren();
  HangingProgram ssh_program_{absl::StrCat(kHello, "echo here")};
};

TEST_F(HangingSshTest, GoesOnWhenItsFileSystemAnswers) {
  ssh_program_.Answer();
  EXPECT_EQ(End(), 0);
  EXPECT_EQ(out_, "here\n");
}

TEST_F(HangingSshTest, IsNotWaitedForWhenItIsKilled) {
  ssh_->Kill();
  EXPECT_FALSE(ssh_->is_open());
  ssh_program_.Answer();
  EXPECT_TRUE(waiter_.PollUntil([this] { return OwnChildren() == before_; }));
  EXPECT_EQ(out_, "");
}

}  // namespace
}  // namespace fsdprun
