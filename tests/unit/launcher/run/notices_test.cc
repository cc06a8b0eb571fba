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

TEST(NoticesTest, ANodeThatIsLeftOutIsNamedWithWhatToDo) {
  const job::NodeQuarantined quarantined{{}, seconds(600), seconds(3600), "node a keeps failing"};
  EXPECT_EQ(
      DescribeQuarantine(quarantined, 1),
      "node a keeps failing; it is left out from now on, for 3600 s, as long as 1 other node is "
      "there. "
      "Look at that machine (kernel log, devices, disks) and at its workers' logs; "
      "--quarantine-after=0 leaves out nobody");
  EXPECT_THAT(DescribeQuarantine(quarantined, 2), HasSubstr("as long as 2 other nodes are there"));
  EXPECT_THAT(DescribeLeftOut("node a keeps failing"),
              HasSubstr("has enough others: node a keeps failing; it waits as a spare"));
  EXPECT_EQ(DescribeLeftOut(""), "this node is left out no longer");
}

AdmitAgent Admission() { return {seconds(15), JobTerms{2, 2, 0, seconds(600), seconds(30)}}; }

TEST(NoticesTest, EqualTermsAreNoNews) {
  EXPECT_EQ(DescribeOtherTerms(Admission(), Admission(), "h:1"), "");
  // A coordinator that does not tell them.
  EXPECT_EQ(DescribeOtherTerms(Admission(), AdmitAgent{seconds(7)}, "h:1"), "");
}

TEST(NoticesTest, EveryOtherTermIsNamedWithBothValues) {
  AdmitAgent own = Admission();
  own.terms->min_nodes = 1;
  EXPECT_EQ(DescribeOtherTerms(own, Admission(), "h:1"),
            "the coordinator at h:1 was given other options than this launcher, and the "
            "coordinator's values count: "
            "--nnodes is 1:2 here, 2 there; give all nodes the same");
  own = {milliseconds(1500), JobTerms{3, 3, 4, seconds(60), seconds(0)}};
  const std::string all = DescribeOtherTerms(own, Admission(), "h:1");
  for (const char* part :
       {"--nnodes is 3 here, 2 there", "--max-restarts is 4 here, 0 there",
        "join_timeout is 60 s here, 600 s there", "last_call_timeout is 0 s here, 30 s there",
        "keep_alive_max_attempt is 1.5 s here, 15 s there"}) {
    EXPECT_THAT(all, HasSubstr(part));
  }
}

}  // namespace
}  // namespace fsdprun
