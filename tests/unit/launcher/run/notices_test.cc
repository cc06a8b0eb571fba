#include "launcher/run/notices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr MonoTime kNow{std::chrono::hours(1)};

job::StopStatus Stop(int operator_signal, std::vector<job::StopStatus::Node> left) {
  job::StopStatus stop;
  stop.operator_signal = operator_signal;
  stop.why = "node n3 joins a world of 2";
  stop.grace = seconds(30);
  stop.kill_at = kNow + milliseconds(28'100);
  stop.left = std::move(left);
  return stop;
}

TEST(NoticesTest, OperatorLearnsWhoIsLeftForHowLongAndWhatASecondSignalDoes) {
  EXPECT_EQ(DescribeStop(Stop(SIGINT, {{"n1", 2}}), kNow),
            "2 workers are still running after SIGINT; to be killed in 29 s (--shutdown-timeout), "
            "or at once at a second signal");
}

TEST(NoticesTest, NodesAreNamedIfThereAreSeveral) {
  EXPECT_THAT(DescribeStop(Stop(SIGTERM, {{"n1", 2}, {"n2", 1}}), kNow),
              HasSubstr("3 workers are still running (n1: 2, n2: 1) after SIGTERM"));
  const std::string many =
      DescribeStop(Stop(SIGTERM, std::vector<job::StopStatus::Node>(9, {"n", 1})), kNow);
  EXPECT_THAT(many, HasSubstr("9 workers"));
  EXPECT_THAT(many, HasSubstr("n: 1, ...)"));
}

TEST(NoticesTest, OtherStopsSayWhy) {
  EXPECT_EQ(DescribeStop(Stop(0, {{"n1", 1}}), kNow),
            "node n3 joins a world of 2: 1 worker is still running; to be killed in 29 s "
            "(--shutdown-timeout)");
  job::StopStatus failed = Stop(0, {{"n1", 1}});
  failed.is_after_failure = true;
  EXPECT_THAT(DescribeStop(failed, kNow), HasSubstr("(--abort-timeout)"));
}

TEST(NoticesTest, WhatOutlivesTheWorkersIsNoWorker) {
  EXPECT_THAT(DescribeStop(Stop(SIGINT, {{"n1", 0}}), kNow),
              HasSubstr("what the workers have started is still running after SIGINT"));
}

TEST(NoticesTest, StopsThatEndSoonAreNotTold) {
  job::StopStatus stop = Stop(SIGINT, {{"n1", 1}});
  EXPECT_TRUE(IsWorthTelling(stop, kNow));
  stop.grace = seconds(3);
  EXPECT_FALSE(IsWorthTelling(stop, kNow));
  stop.grace = seconds(30);
  EXPECT_FALSE(IsWorthTelling(stop, stop.kill_at));
  EXPECT_FALSE(IsWorthTelling(stop, stop.kill_at - milliseconds(999)));
}

TEST(NoticesTest, WaitIsNeverLongerThanItsTimeout) {
  EXPECT_EQ(DescribeWait(kNow + seconds(595), seconds(600), kNow), "5 s of 600 s");
  EXPECT_EQ(DescribeWait(kNow + milliseconds(590'001), seconds(600), kNow), "9 s of 600 s");
  EXPECT_EQ(DescribeWait(kNow - seconds(5), seconds(600), kNow), "600 s of 600 s");
  EXPECT_EQ(DescribeWait(kNow + seconds(700), seconds(600), kNow), "0 s of 600 s");
  EXPECT_EQ(DescribeWait(MonoTime::max(), seconds(600), kNow), "0 s of 600 s");
}

}  // namespace
}  // namespace fsdprun
