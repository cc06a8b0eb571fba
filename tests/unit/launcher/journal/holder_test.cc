#include "launcher/journal/holder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace fsdprun {
namespace {

Holder Self() { return {"1f", ::getpid(), "head", ProcessMark(::getpid())}; }

TEST(HolderTest, TextIsReadAsItWasWritten) {
  EXPECT_EQ(DecodeHolder(EncodeHolder(Self())), Self());
  EXPECT_EQ(Describe(Holder{"1", 7, "head", ""}), "process 7 on head");
}

TEST(HolderTest, WhatIsNoHolderIsNone) {
  const std::string good = EncodeHolder(Self());
  for (const std::string& text : {std::string(), std::string("hello"), good.substr(0, 30),
                                  std::string("x\n") + good, good + "pid seven\n"}) {
    EXPECT_FALSE(DecodeHolder(text).has_value()) << text;
  }
}

TEST(HolderTest, AProcessThatRunsHasNotEnded) {
  EXPECT_NE(Self().mark, "");
  EXPECT_FALSE(HasEnded(Self()));
}

TEST(HolderTest, AProcessThatWasKilledHasEndedWhetherItIsReapedOrNot) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
  }
  const Holder holder{"1f", child, "head", ProcessMark(child)};
  EXPECT_FALSE(HasEnded(holder));
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(HasEnded(holder));  // A zombie.
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(HasEnded(holder));
}

TEST(HolderTest, AnotherProcessWithItsNumberIsAnotherProcess) {
  Holder before = Self();
  before.mark += "1";
  EXPECT_TRUE(HasEnded(before));
}

TEST(HolderTest, OfAProcessElsewhereNothingIsKnown) {
  Holder other = Self();
  other.mark = "another-boot pid:[1] 4711 100";
  EXPECT_FALSE(HasEnded(other));
  other.mark = "";
  EXPECT_FALSE(HasEnded(other));
}

TEST(HolderWatchTest, WhoseLeaseIsRenewedTwiceLives) {
  HolderWatch watch;
  EXPECT_TRUE(watch.See("a", 9));
  for (const int64_t left : {9, 8, 10, 9, 8}) {
    EXPECT_FALSE(watch.See("a", left));
    EXPECT_FALSE(watch.lives());
  }
  watch.See("a", 9);
  EXPECT_TRUE(watch.lives());
}

TEST(HolderWatchTest, EachHolderIsWatchedAnew) {
  HolderWatch watch;
  for (const int64_t left : {8, 10, 9}) {
    watch.See("a", left);
  }
  EXPECT_TRUE(watch.See("b", 10));
  watch.See("b", 9);
  watch.See("b", 10);
  EXPECT_FALSE(watch.lives());
}

}  // namespace
}  // namespace fsdprun
