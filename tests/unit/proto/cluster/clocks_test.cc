#include "proto/cluster/clocks.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ClocksTest, DefaultLeaseGivesTheDefaults) {
  const Clocks clocks = ClocksFor(std::chrono::duration_cast<milliseconds>(kNodeLease));
  EXPECT_EQ(clocks.suspect_after, milliseconds(1500));
  EXPECT_EQ(clocks.heartbeat_interval, milliseconds(500));
  EXPECT_EQ(clocks.coordinator_grace, seconds(30));
  EXPECT_EQ(clocks.keeper_lease, seconds(35));
  EXPECT_EQ(clocks.claim_lease, seconds(40));
  EXPECT_EQ(clocks.stream_silence, seconds(3));
}

TEST(ClocksTest, LongLeasePutsTheOthersOff) {
  const Clocks clocks = ClocksFor(seconds(60));
  EXPECT_EQ(clocks.node_lease, seconds(60));
  EXPECT_EQ(clocks.heartbeat_interval, milliseconds(500));
  EXPECT_EQ(clocks.coordinator_grace, seconds(70));
  EXPECT_EQ(clocks.keeper_lease, seconds(75));
  EXPECT_EQ(clocks.claim_lease, seconds(80));
  EXPECT_EQ(clocks.stream_silence, seconds(60));
}

TEST(ClocksTest, LeaseThatNoClockCanHoldIsADay) {
  EXPECT_EQ(ClocksFor(milliseconds::max()).node_lease, std::chrono::hours(24));
  EXPECT_TRUE(AreOrdered(ClocksFor(milliseconds::max())));
}

TEST(ClocksTest, ShortLeaseMakesHeartbeatsFasterAndIsASecondAtLeast) {
  for (const milliseconds chosen : {milliseconds(1), milliseconds(1000)}) {
    const Clocks clocks = ClocksFor(chosen);
    EXPECT_EQ(clocks.node_lease, seconds(1));
    EXPECT_LT(clocks.heartbeat_interval, milliseconds(200));
    EXPECT_EQ(clocks.stream_silence, seconds(3));
  }
}

TEST(ClocksTest, EveryLeaseKeepsTheOrderInWhichTheyLetGo) {
  for (int lease_ms = 1; lease_ms < 4'000'000; lease_ms += 1 + lease_ms / 7) {
    EXPECT_TRUE(AreOrdered(ClocksFor(milliseconds(lease_ms)))) << lease_ms;
  }
  Clocks wrong;
  wrong.coordinator_grace = wrong.keeper_lease;
  EXPECT_FALSE(AreOrdered(wrong));
}

constexpr MonoTime kDue{std::chrono::hours(1)};

TEST(LatenessTest, WhatIsNearlyInTimeIsNotLate) {
  Lateness lateness;
  EXPECT_EQ(lateness.At(kDue, kDue - seconds(1)).forgiven, Duration{});
  EXPECT_EQ(lateness.At(kDue, kDue + milliseconds(49)).forgiven, Duration{});
  EXPECT_EQ(lateness.At(MonoTime::max(), kDue + seconds(9)).forgiven, Duration{});
}

TEST(LatenessTest, ADelayIsForgivenWithTimeToReadWhatHasCome) {
  Lateness lateness;
  EXPECT_EQ(lateness.At(kDue, kDue + milliseconds(200)).forgiven, milliseconds(400));
  EXPECT_EQ(Lateness().At(kDue, kDue + seconds(9)).forgiven, milliseconds(9500));
  EXPECT_EQ(Lateness().At(kDue, kDue + seconds(9)).late, seconds(9));
}

TEST(LatenessTest, ADelayIsForgivenOnceHoweverManyEventsItHasQueued) {
  Lateness lateness;
  lateness.At(kDue, kDue + milliseconds(200));
  for (int i = 1; i < 40; ++i) {
    EXPECT_EQ(lateness.At(kDue, kDue + milliseconds(200 + i)).forgiven, Duration{});
  }
}

TEST(LatenessTest, WhoIsAlwaysLateGetsTimeToReadOnce) {
  Lateness lateness;
  lateness.At(kDue, kDue + milliseconds(200));
  EXPECT_EQ(lateness.At(kDue + seconds(1), kDue + milliseconds(1200)).forgiven, milliseconds(200));
  EXPECT_EQ(lateness.At(kDue + seconds(2), kDue + seconds(2)).forgiven, Duration{});
  EXPECT_EQ(lateness.At(kDue + seconds(3), kDue + milliseconds(3200)).forgiven, milliseconds(400));
}

}  // namespace
}  // namespace fsdprun
