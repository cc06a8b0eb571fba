#include "launcher/run/signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;

/// Restores what a watcher changes in this process.
class SignalsTest : public testing::Test {
 protected:
  SignalsTest() {
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
    pipe_ = ::signal(SIGPIPE, SIG_DFL);
  }
  ~SignalsTest() override {
    watcher_.reset();
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    ::signal(SIGPIPE, pipe_);
  }
  void Watch(const std::vector<int>& ending, const std::vector<int>& forwarded) {
    const auto keep = [this](std::vector<int>& seen) {
      return [this, &seen](int signal) {
        seen.push_back(signal);
        waiter_.Notice();
      };
    };
    watcher_ = std::make_unique<SignalWatcher>(loop_, SignalWatcher::Watch{ending, keep(ended_)},
                                               SignalWatcher::Watch{forwarded, keep(passed_on_)});
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::vector<int> ended_;
  std::vector<int> passed_on_;
  std::unique_ptr<SignalWatcher> watcher_;
  sigset_t mask_{};
  void (*pipe_)(int) = nullptr;
};

TEST_F(SignalsTest, EachKindGoesWhereItBelongs) {
  Watch({SIGTERM}, {SIGUSR1, SIGRTMIN});
  for (const int signal : {SIGUSR1, SIGTERM, SIGRTMIN}) {
    ::kill(::getpid(), signal);
  }
  ASSERT_TRUE(waiter_.RunUntil([&] { return ended_.size() + passed_on_.size() == 3; }));
  EXPECT_THAT(ended_, ElementsAre(SIGTERM));
  EXPECT_THAT(passed_on_, ElementsAre(SIGUSR1, SIGRTMIN));
}

TEST_F(SignalsTest, OnlyAnEndingSignalIsPendingForWhoeverWantsToEnd) {
  Watch({SIGTERM}, {SIGUSR1});
  ::kill(::getpid(), SIGUSR1);
  EXPECT_EQ(watcher_->TakePending(), 0);
  ::kill(::getpid(), SIGUSR1);
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(watcher_->TakePending(), SIGTERM);
  EXPECT_EQ(watcher_->TakePending(), 0);
}

TEST_F(SignalsTest, WhatWasIgnoredAtTheStartStaysIgnored) {
  const auto before = ::signal(SIGHUP, SIG_IGN);
  Watch({SIGHUP, SIGTERM}, {});
  ::kill(::getpid(), SIGHUP);
  EXPECT_EQ(watcher_->TakePending(), 0);
  ::signal(SIGHUP, before);
}

}  // namespace
}  // namespace fsdprun
