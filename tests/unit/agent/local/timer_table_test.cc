#include "agent/local/timer_table.h"

#include <gtest/gtest.h>

#include <chrono>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kUnixNow = 1'000'000;
const MonoTime kNow = MonoTime(seconds(500));

struct Table : TimerTable {
  bool Set(int32_t pid, const std::string& scope, double in_s, int signal = 9) {
    return Acquire(
        {.pid = pid, .scope = scope, .expires_unix_s = kUnixNow + in_s, .signal = signal},
        ProcessInfo{.pid = pid, .start_time_ticks = 7}, kUnixNow, kNow);
  }
  std::vector<ExpiredTimer> At(Duration later, Duration stall = {}) {
    return TakeExpired(kNow + later, stall);
  }
};

TEST(TimerRequestTest, LinesOfFileTimerClientAreUnderstood) {
  const auto acquire = ParseTimerRequest(
      R"({"version": 1, "pid": 12, "scope_id": "s", "expiration_time": 17.5, "signal": 9})");
  ASSERT_TRUE(acquire.has_value());
  EXPECT_EQ(std::tie(acquire->pid, acquire->scope, acquire->expires_unix_s, acquire->signal),
            std::make_tuple(12, "s", 17.5, 9));
  EXPECT_FALSE(acquire->IsRelease());
  const auto release = ParseTimerRequest(
      R"({"version": 1, "pid": 12, "scope_id": "s", "expiration_time": -1, "signal": 0})");
  ASSERT_TRUE(release.has_value());
  EXPECT_TRUE(release->IsRelease());
}

TEST(TimerRequestTest, AnythingElseIsRefused) {
  for (const char* line : {
           "",
           "x",
           "[]",
           "{}",
           R"({"pid":1,"scope_id":"s","expiration_time":1})",
           R"({"pid":0,"scope_id":"s","expiration_time":1,"signal":9})",
           R"({"pid":-5,"scope_id":"s","expiration_time":1,"signal":9})",
           R"({"pid":4294967297,"scope_id":"s","expiration_time":1,"signal":9})",
           R"({"pid":1.5,"scope_id":"s","expiration_time":1,"signal":9})",
           R"({"pid":1,"scope_id":7,"expiration_time":1,"signal":9})",
           R"({"pid":1,"scope_id":"s","expiration_time":"1","signal":9})",
           R"({"pid":1,"scope_id":"s","expiration_time":1e999,"signal":9})",
           R"({"pid":1,"scope_id":"s","expiration_time":1,"signal":65})",
       }) {
    EXPECT_FALSE(ParseTimerRequest(line).has_value()) << line;
  }
}

TEST(TimerTableTest, ExpiresAtItsTimeAndTellsHowLate) {
  Table table;
  EXPECT_EQ(table.next(), MonoTime::max());
  table.Set(3, "step", 2);
  EXPECT_EQ(table.next(), kNow + seconds(2));
  EXPECT_TRUE(table.At(milliseconds(1999)).empty());
  const auto expired = table.At(milliseconds(2030));
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].process.pid, 3);
  EXPECT_EQ(expired[0].process.start_time_ticks, 7u);
  EXPECT_EQ(expired[0].scope, "step");
  EXPECT_EQ(expired[0].late, milliseconds(30));
  EXPECT_TRUE(table.At(seconds(9)).empty()) << "only once";
}

TEST(TimerTableTest, ReleaseAndRenewalMoveTheEnd) {
  Table table;
  table.Set(3, "a", 1);
  table.Set(3, "b", 1);
  table.Set(4, "a", 1);
  table.Release(3, "a");
  table.Set(3, "b", 5);
  table.Drop(4);
  EXPECT_EQ(table.next(), kNow + seconds(5));
  table.Clear();
  EXPECT_EQ(table.next(), MonoTime::max());
}

TEST(TimerTableTest, OneSignalPerProcessAndItsOtherTimersGo) {
  Table table;
  table.Set(3, "silent", 1, 0);
  table.Set(3, "second", 3, 15);
  table.Set(3, "first", 2, 6);
  table.Set(3, "later", 100);
  table.Set(4, "other", 2.5);
  const auto expired = table.At(seconds(4));
  ASSERT_EQ(expired.size(), 3u);
  EXPECT_EQ(expired[0].scope, "silent");
  EXPECT_EQ(expired[1].scope, "first");
  EXPECT_EQ(expired[2].scope, "other");
  EXPECT_EQ(table.next(), MonoTime::max());
}

TEST(TimerTableTest, WithoutASignalTheProcessKeepsItsOtherTimers) {
  Table table;
  table.Set(3, "silent", 1, 0);
  table.Set(3, "later", 100);
  EXPECT_EQ(table.At(seconds(2)).size(), 1u);
  EXPECT_EQ(table.next(), kNow + seconds(100));
}

TEST(TimerTableTest, AStallOfThisProcessIsForgivenForAtMostTheTimersLength) {
  Table table;
  table.Set(3, "short", 2);
  table.Set(4, "long", 60);
  EXPECT_TRUE(table.At(seconds(90), seconds(88)).empty());
  EXPECT_EQ(table.next(), kNow + seconds(92));
  const auto expired = table.At(seconds(200));
  ASSERT_EQ(expired.size(), 2u);
  EXPECT_EQ(expired[0].late, seconds(108));
  EXPECT_EQ(expired[1].late, seconds(50));
}

TEST(TimerTableTest, WhatIsLateWhenItIsSetExpiresAtOnce) {
  Table table;
  table.Set(3, "past", -5);
  EXPECT_EQ(table.At(Duration::zero(), seconds(5)).size(), 1u);
  table.Set(3, "far", 1e300);
  EXPECT_GT(table.next(), kNow + std::chrono::hours(24 * 365));
}

TEST(TimerTableTest, ManyTimersDoNotFillTheMemory) {
  Table table;
  for (size_t i = 0; i < TimerTable::kMaxTimers; ++i) {
    EXPECT_TRUE(table.Set(3, std::to_string(i), 1));
  }
  EXPECT_FALSE(table.Set(3, "one more", 1));
  EXPECT_TRUE(table.Set(3, "7", 2)) << "one that exists";
}

}  // namespace
}  // namespace fsdprun
