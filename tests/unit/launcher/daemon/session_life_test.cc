#include "launcher/daemon/session_life.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using Order = SessionLife::Order;
using std::chrono::seconds;

constexpr SessionLife::Graces kGraces{.lost = seconds(20), .stop = seconds(30)};
constexpr Duration kKillAfter = kGraces.stop + SessionLife::kKillMargin;

MonoTime At(Duration since_start) { return MonoTime(since_start); }

TEST(SessionLifeTest, RunsForAsLongAsItIsFollowed) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Followed();
  EXPECT_EQ(life.due(), MonoTime::max());
  EXPECT_EQ(life.Next(At(std::chrono::hours(1000))), Order::kNone);
}

TEST(SessionLifeTest, WithoutItsLauncherItIsEndedAndThenKilled) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Followed();
  life.Lost(At(seconds(100)));
  const MonoTime end = At(seconds(100)) + kGraces.lost;
  EXPECT_EQ(life.due(), end);
  EXPECT_EQ(life.Next(end - Duration(1)), Order::kNone);
  EXPECT_EQ(life.Next(end), Order::kTerminate);
  EXPECT_EQ(life.Next(end), Order::kNone);
  EXPECT_EQ(life.due(), end + kKillAfter);
  EXPECT_EQ(life.Next(end + kKillAfter), Order::kKill);
  EXPECT_EQ(life.due(), MonoTime::max());
}

TEST(SessionLifeTest, ALauncherThatComesAgainInTimeKeepsIt) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Lost(At(seconds(0)));
  life.Followed();
  EXPECT_EQ(life.Next(At(seconds(60))), Order::kNone);
  // A second loss has a grace of its own.
  life.Lost(At(seconds(60)));
  life.Lost(At(seconds(65)));
  EXPECT_EQ(life.due(), At(seconds(60)) + kGraces.lost);
}

TEST(SessionLifeTest, OneThatANewDaemonHasFoundWaitsForItsLauncher) {
  SessionLife life(kGraces, At(seconds(7)));
  EXPECT_EQ(life.due(), At(seconds(7)) + kGraces.lost);
}

TEST(SessionLifeTest, AReleasedOneEndsAtOnce) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Followed();
  life.Released(At(seconds(5)));
  EXPECT_EQ(life.Next(At(seconds(5))), Order::kTerminate);
  life.Ended(At(seconds(5)));
  EXPECT_EQ(life.Next(At(seconds(6))), Order::kForget);
}

TEST(SessionLifeTest, WhatHasEndedIsKeptForItsLauncher) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Followed();
  life.Ended(At(seconds(5)));
  EXPECT_EQ(life.due(), MonoTime::max());
  EXPECT_EQ(life.Next(At(seconds(1000))), Order::kNone);
  life.Lost(At(seconds(1000)));
  EXPECT_EQ(life.Next(At(seconds(1001))), Order::kNone);
  EXPECT_EQ(life.Next(At(seconds(1000)) + kGraces.lost), Order::kForget);
}

TEST(SessionLifeTest, ADetachedOneNeedsNobodyAndItsEndIsKept) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Detach();
  EXPECT_EQ(life.Next(At(std::chrono::hours(100))), Order::kNone);
  life.Followed();
  life.Lost(At(std::chrono::hours(100)));
  EXPECT_EQ(life.Next(At(std::chrono::hours(200))), Order::kNone);
  life.Ended(At(std::chrono::hours(200)));
  EXPECT_EQ(life.due(), At(std::chrono::hours(200)) + SessionLife::kKeepEnded);
  life.Followed();
  EXPECT_EQ(life.due(), MonoTime::max());
  life.Lost(At(std::chrono::hours(210)));
  EXPECT_EQ(life.due(), At(std::chrono::hours(210)) + SessionLife::kKeepEnded);
  EXPECT_EQ(life.Next(life.due()), Order::kForget);
}

TEST(SessionLifeTest, UntilItIsDetachedItNeedsItsLauncher) {
  SessionLife lost(kGraces, At(seconds(0)));
  lost.Followed();
  lost.Lost(At(seconds(5)));
  EXPECT_EQ(lost.Next(At(seconds(5)) + kGraces.lost), Order::kTerminate);

  SessionLife life(kGraces, At(seconds(0)));
  life.Followed();
  life.Detach();
  life.Lost(At(seconds(5)));
  EXPECT_EQ(life.Next(At(std::chrono::hours(100))), Order::kNone);
  // Who attaches is told again that it has started.
  life.Followed();
  life.Released(At(std::chrono::hours(100)));
  life.Detach();
  EXPECT_EQ(life.Next(At(std::chrono::hours(100))), Order::kTerminate);
}

TEST(SessionLifeTest, ADetachedOneThatEndsWhileItIsFollowedWaitsForDone) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Detach();
  life.Followed();
  life.Ended(At(seconds(5)));
  EXPECT_EQ(life.due(), MonoTime::max());
  life.Released(At(seconds(6)));
  EXPECT_EQ(life.Next(At(seconds(6))), Order::kForget);
}

TEST(SessionLifeTest, ADaemonThatEndsStopsThemAllFollowedOrNot) {
  SessionLife life(kGraces, At(seconds(0)));
  life.Followed();
  life.Stop(At(seconds(3)));
  EXPECT_EQ(life.Next(At(seconds(3))), Order::kTerminate);
  life.Kill(At(seconds(4)));
  EXPECT_EQ(life.due(), At(seconds(4)));
  EXPECT_EQ(life.Next(At(seconds(4))), Order::kKill);
  EXPECT_EQ(life.Next(At(seconds(100))), Order::kNone);
}

TEST(SessionLifeTest, OneThatWasToldToEndIsNotStartedAgain) {
  SessionLife told(kGraces, At(seconds(0)));
  told.Followed();
  EXPECT_FALSE(told.is_ending());
  told.Stop(At(seconds(1)));
  told.Next(At(seconds(1)));
  EXPECT_TRUE(told.is_ending());
  SessionLife killed(kGraces, At(seconds(0)));
  killed.Kill(At(seconds(1)));
  killed.Next(At(seconds(1)));
  EXPECT_TRUE(killed.is_ending());
}

}  // namespace
}  // namespace fsdprun
