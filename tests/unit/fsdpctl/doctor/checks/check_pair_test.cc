#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdpctl/doctor/checks/pair_checks.h"
#include "tests/unit/fsdpctl/doctor/checks/finding_of.h"

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

PairFacts Fast() {
  return {.own_node = "node0",
          .own_release = "1.0",
          .own_protocol = 3,
          .own_mtu = 1500,
          .node = "node1",
          .release = "1.0",
          .protocol = 3,
          .mtu = 1500,
          .address = "10.0.0.2",
          .round_trips = {.count = 200,
                          .median_us = 40,
                          .p99_us = 90,
                          .clock_offset_us = 300,
                          .clock_error_us = 20},
          .back = {.address = "10.0.0.2:40000"},
          .large_to = {.was_sent = true, .arrived = kLargeBytes},
          .large_from = {.was_sent = true, .arrived = kLargeBytes},
          .streams = kManyStreams,
          .to = {.one_stream = 20e9, .many_streams = 40e9, .segments = 100'000},
          .from = {.one_stream = 20e9, .many_streams = 40e9, .segments = 100'000}};
}

TEST(CheckPairTest, FastOneIsFine) {
  EXPECT_EQ(WorstOf(CheckPair(Fast())), Severity::kOk);
  EXPECT_EQ(WorstOf(CheckPair(Mirrored(Fast()))), Severity::kOk);
}

TEST(CheckPairTest, OtherReleases) {
  PairFacts facts = Fast();
  facts.release = "1.1";
  EXPECT_EQ(SeverityOf(CheckPair(facts), "release"), Severity::kWarning);
  facts.protocol = 4;
  EXPECT_EQ(SeverityOf(CheckPair(facts), "release"), Severity::kProblem);
}

TEST(CheckPairTest, WayBackThatIsClosedNamesBothEndsRight) {
  PairFacts facts = Fast();
  facts.back.error = "no answer within 3 s";
  const Finding here = FindingOf(CheckPair(facts), "way_back");
  EXPECT_EQ(here.severity, Severity::kProblem);
  EXPECT_THAT(here.found, HasSubstr("node0 cannot connect to node1 at 10.0.0.2:40000"));
  EXPECT_EQ(FindingOf(CheckPair(Mirrored(facts)), "way_back").found, here.found);
}

TEST(CheckPairTest, HostNameThatLeadsNowhere) {
  PairFacts facts = Fast();
  facts.back_by_name = {.address = "127.0.1.1:40000", .error = "Connection refused"};
  const Finding name = FindingOf(CheckPair(facts), "host_name");
  EXPECT_EQ(name.severity, Severity::kWarning);
  EXPECT_THAT(name.what_to_do, HasSubstr("GLOO_SOCKET_IFNAME"));
}

TEST(CheckPairTest, LargeMessageThatStalls) {
  PairFacts facts = Fast();
  facts.large_to = {.was_sent = true, .stalled = true, .arrived = 0};
  facts.own_mtu = 9000;
  const Finding large = FindingOf(CheckPair(facts), "large_message");
  EXPECT_EQ(large.severity, Severity::kProblem);
  EXPECT_THAT(large.found, HasSubstr("from node0 to node1"));
  EXPECT_THAT(large.found, HasSubstr("9000 on node0, 1500 on node1"));
  EXPECT_EQ(FindingOf(CheckPair(Mirrored(facts)), "large_message").severity, Severity::kProblem);
  facts.large_to = Fast().large_to;
  EXPECT_EQ(SeverityOf(CheckPair(facts), "mtu"), Severity::kNote);
}

TEST(CheckPairTest, LargeMessageThatBreaksOffOrIsTooSlow) {
  PairFacts facts = Fast();
  facts.large_from = {.was_sent = true, .stalled = false, .arrived = 1000};
  const Finding large = FindingOf(CheckPair(facts), "large_message");
  EXPECT_EQ(large.severity, Severity::kProblem);
  EXPECT_THAT(large.found, HasSubstr("from node1 to node0 broke off"));
  EXPECT_THAT(large.found, HasSubstr("1000 of 1048576 bytes"));
  EXPECT_EQ(FindingOf(CheckPair(Mirrored(facts)), "large_message").found, large.found);
  facts.large_from.arrived = 0;
  EXPECT_EQ(SeverityOf(CheckPair(facts), "large_message"), Severity::kProblem);
  facts.large_from = {};  // The test ended before.
  for (const Finding& finding : CheckPair(facts)) {
    EXPECT_NE(finding.check, "large_message");
  }
}

TEST(CheckPairTest, RoundTripsAndClocks) {
  PairFacts facts = Fast();
  facts.round_trips.median_us = 2000;
  EXPECT_EQ(SeverityOf(CheckPair(facts), "round_trip"), Severity::kNote);
  facts.round_trips.median_us = 30'000;
  EXPECT_EQ(SeverityOf(CheckPair(facts), "round_trip"), Severity::kWarning);
  facts.round_trips.clock_offset_us = -3e6;
  const Finding clock = FindingOf(CheckPair(facts), "clock_offset");
  EXPECT_EQ(clock.severity, Severity::kWarning);
  EXPECT_THAT(clock.found, HasSubstr("node1 is 3 s behind"));
  EXPECT_THAT(FindingOf(CheckPair(Mirrored(facts)), "clock_offset").found,
              HasSubstr("node0 is 3 s ahead"));
  facts.round_trips.clock_error_us = 3e6;  // It may as well be right.
  EXPECT_EQ(SeverityOf(CheckPair(facts), "clock_offset"), Severity::kOk);
}

TEST(CheckPairTest, Bandwidth) {
  PairFacts facts = Fast();
  facts.to = facts.from = {.one_stream = 900e6, .many_streams = 900e6};
  EXPECT_EQ(SeverityOf(CheckPair(facts), "bandwidth"), Severity::kNote);
  facts.to = facts.from = {.one_stream = 90e6, .many_streams = 90e6};
  EXPECT_EQ(SeverityOf(CheckPair(facts), "bandwidth"), Severity::kWarning);
  facts = Fast();
  facts.from.many_streams = facts.from.one_stream = 6e9;
  EXPECT_THAT(FindingOf(CheckPair(facts), "bandwidth").why, HasSubstr("one direction"));
  facts = Fast();
  facts.to.one_stream = 5e9;
  EXPECT_EQ(SeverityOf(CheckPair(facts), "one_stream"), Severity::kNote);
  facts.to.retransmitted = 10'000;
  EXPECT_EQ(SeverityOf(CheckPair(facts), "loss"), Severity::kWarning);
}

TEST(CheckPairTest, TestThatBroke) {
  PairFacts facts{.own_node = "node0", .node = "10.0.0.2", .broken = "no answer"};
  EXPECT_EQ(SeverityOf(CheckPair(facts), "test"), Severity::kProblem);
}

TEST(CheckMeetingTest, NodesThatDidNotCome) {
  EXPECT_EQ(WorstOf(CheckMeeting({.expected = 4, .came = 3})), Severity::kOk);
  const Finding nodes =
      FindingOf(CheckMeeting({.expected = 4, .came = 1, .waited_s = 60}), "nodes");
  EXPECT_EQ(nodes.severity, Severity::kProblem);
  EXPECT_THAT(nodes.found, HasSubstr("2 of 4 nodes did not come: nobody new for 60 s"));
  EXPECT_EQ(WorstOf(CheckMeeting({.expected = 0, .came = 0, .was_interrupted = true})),
            Severity::kOk);
}

TEST(CheckMeetingTest, WhoWasNotLetIn) {
  const std::vector<Finding> findings =
      CheckMeeting({.expected = 2, .came = 1, .refused = {"10.0.0.7"}, .strangers = 3});
  EXPECT_EQ(SeverityOf(findings, "token"), Severity::kProblem);
  EXPECT_EQ(SeverityOf(findings, "strangers"), Severity::kNote);
}

TEST(CheckJoiningTest, EachFailureSaysWhatToDo) {
  for (const JoinFailure failure :
       {JoinFailure::kUnknownHost, JoinFailure::kRefused, JoinFailure::kSilent,
        JoinFailure::kOtherProgram, JoinFailure::kOtherVersion, JoinFailure::kOtherToken,
        JoinFailure::kInterrupted, JoinFailure::kBroken}) {
    const std::vector<Finding> findings =
        CheckJoining({.failure = failure, .endpoint = "node0:29400", .text = "it failed"});
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].severity, Severity::kProblem);
    EXPECT_EQ(findings[0].found, "it failed");
    EXPECT_FALSE(findings[0].why.empty());
    EXPECT_FALSE(findings[0].what_to_do.empty());
  }
}

}  // namespace
}  // namespace fsdprun::doctor
