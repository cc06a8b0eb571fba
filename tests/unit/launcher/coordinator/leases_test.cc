#include "launcher/coordinator/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Nodes 1 to `count` of a job that runs, all of which were heard of at the start. A lease is 3 s,
/// suspicion comes after 1.5 s, a broken stream may be replaced for 0.25 s.
class LeasesTest : public ::testing::Test {
 protected:
  LeasesTest() { leases_.JobRuns(now_); }
  void Add(int count) {
    for (int i = 1; i <= count; ++i) {
      job::Node node;
      node.info.incarnation = Incarnation(i);
      leases_.Begin(nodes_.Insert(std::move(node)), now_);
    }
  }
  job::Node& Node(int i) { return nodes_.At(Incarnation(i)); }
  /// "1 was silent for 3.0 s", for each lease that is over.
  std::vector<std::string> ScanAt(Duration since_start) {
    findings_ = leases_.Scan(nodes_, start_ + since_start);
    std::vector<std::string> lapses;
    for (const Leases::Lapse& lapse : findings_.lapses) {
      lapses.push_back(std::to_string(lapse.incarnation.value()) + " " + lapse.what);
    }
    return lapses;
  }

  JobSpec spec_;
  NodeTable nodes_;
  Leases leases_{spec_};
  Leases::Findings findings_;
  const MonoTime start_{std::chrono::hours(1)};
  MonoTime now_ = start_;
};

TEST_F(LeasesTest, SilentNodeIsSuspectedAndThenLost) {
  Add(1);
  EXPECT_EQ(leases_.next_scan(), start_ + milliseconds(1500));
  EXPECT_THAT(ScanAt(milliseconds(1499)), IsEmpty());
  EXPECT_FALSE(Node(1).suspect);
  EXPECT_FALSE(findings_.has_changes);
  EXPECT_THAT(ScanAt(milliseconds(1500)), IsEmpty());
  EXPECT_TRUE(Node(1).suspect);
  EXPECT_TRUE(findings_.has_changes);
  EXPECT_EQ(leases_.next_scan(), start_ + seconds(3));
  EXPECT_THAT(ScanAt(milliseconds(2999)), IsEmpty());
  EXPECT_FALSE(findings_.has_changes);
  EXPECT_THAT(ScanAt(seconds(3)), ElementsAre("1 was silent for 3.0 s"));
}

TEST_F(LeasesTest, HeartbeatEndsASuspicionAndRenewsTheLease) {
  Add(1);
  ScanAt(seconds(2));
  EXPECT_TRUE(leases_.Renew(Node(1), start_ + seconds(2)));
  EXPECT_FALSE(leases_.Renew(Node(1), start_ + seconds(2)));
  EXPECT_THAT(ScanAt(seconds(3)), IsEmpty());
  EXPECT_EQ(leases_.next_scan(), start_ + milliseconds(3500));
}

TEST_F(LeasesTest, WhereAnotherAgentMayComeABrokenStreamIsLikeSilence) {
  Add(2);
  Node(1).info.has_successor = true;
  leases_.Break(Node(1), start_ + seconds(1));
  Node(2).last_heard = Node(2).lease_from = start_ + seconds(3);
  EXPECT_THAT(ScanAt(milliseconds(3999)), IsEmpty());
  EXPECT_EQ(leases_.next_scan(), start_ + seconds(4));
  EXPECT_THAT(ScanAt(seconds(4)),
              ElementsAre("1 lost its stream and did not reconnect within 3.0 s"));
}

TEST_F(LeasesTest, OnceNobodyComesInItsPlaceABrokenStreamHasToBeReplacedSoon) {
  Add(2);
  Node(1).info.has_successor = Node(2).info.has_successor = true;
  leases_.Break(Node(1), start_ + seconds(1));
  leases_.ExpectNoSuccessor(Node(1),
                            start_ + milliseconds(1400));  // It has been awaited long enough.
  EXPECT_EQ(leases_.next_scan(), start_ + milliseconds(1400));
  EXPECT_THAT(ScanAt(milliseconds(1400)),
              ElementsAre("1 lost its stream and did not reconnect within 0.4 s"));
  leases_.ExpectNoSuccessor(Node(2), start_ + milliseconds(1400));  // Its stream is not broken yet.
  leases_.Break(Node(2), start_ + milliseconds(1450));
  EXPECT_THAT(ScanAt(milliseconds(1699)), ElementsAre(HasSubstr("1 lost")));
  EXPECT_THAT(ScanAt(milliseconds(1700)), ElementsAre(HasSubstr("1 lost"), HasSubstr("2 lost")));
}

TEST_F(LeasesTest, BrokenStreamHasToBeReplacedSoon) {
  Add(2);
  leases_.Break(Node(1), start_ + seconds(1));
  EXPECT_EQ(leases_.next_scan(), start_ + milliseconds(1250));
  EXPECT_THAT(ScanAt(milliseconds(1249)), IsEmpty());
  EXPECT_THAT(ScanAt(milliseconds(1250)),
              ElementsAre("1 lost its stream and did not reconnect within 0.2 s"));
}

TEST_F(LeasesTest, NewStreamIsANewLease) {
  Add(1);
  ScanAt(seconds(2));
  leases_.Break(Node(1), start_ + seconds(2));
  leases_.Begin(Node(1), start_ + milliseconds(2100));
  EXPECT_THAT(ScanAt(seconds(3)), IsEmpty());
  EXPECT_FALSE(Node(1).suspect);
}

TEST_F(LeasesTest, ReleasedNodeHasNoLease) {
  Add(1);
  Node(1).state = job::NodeState::kReleased;
  EXPECT_THAT(ScanAt(seconds(60)), IsEmpty());
  EXPECT_FALSE(Node(1).suspect);
  EXPECT_EQ(leases_.next_scan(), MonoTime::max());
}

TEST_F(LeasesTest, StallOfTheCoordinatorIsNobodysSilence) {
  Add(1);
  leases_.Break(Node(1), start_);
  leases_.ForgiveLateness({seconds(10), seconds(10)}, start_ + seconds(10));
  EXPECT_THAT(ScanAt(seconds(10)), IsEmpty());
  EXPECT_THAT(ScanAt(milliseconds(12'999)), IsEmpty());
  EXPECT_THAT(ScanAt(seconds(13)), ElementsAre(HasSubstr("did not reconnect within 13.0 s")));
}

TEST_F(LeasesTest, AfterAStallSilenceCountsFromItsEndButIsToldFromTheLastHeartbeat) {
  Add(1);
  leases_.ForgiveLateness({seconds(10), seconds(10)}, start_ + seconds(10));
  EXPECT_THAT(ScanAt(seconds(11)), IsEmpty());
  EXPECT_FALSE(Node(1).suspect);
  EXPECT_THAT(ScanAt(seconds(13)), ElementsAre("1 was silent for 13.0 s"));
}

TEST_F(LeasesTest, ManyAtOnceAreTakenForThisHostsNetworkOnce) {
  Add(9);
  for (int i = 4; i <= 9; ++i) {
    leases_.Renew(Node(i), start_ + seconds(1));
  }
  EXPECT_THAT(ScanAt(milliseconds(1500)), IsEmpty());
  EXPECT_THAT(findings_.notice, HasSubstr("3 of 9 nodes fell silent at once"));
  EXPECT_THAT(ScanAt(seconds(3)), IsEmpty());
  EXPECT_EQ(findings_.notice, "");
  for (int i = 4; i <= 9; ++i) {
    leases_.Renew(Node(i), start_ + seconds(4));
  }
  EXPECT_EQ(ScanAt(milliseconds(4500)).size(), 3u);
}

TEST_F(LeasesTest, LeasesAreExtendedAnewOnceNobodyWasSilent) {
  Add(3);
  ScanAt(milliseconds(1500));
  ASSERT_NE(findings_.notice, "");
  for (int i = 1; i <= 3; ++i) {
    leases_.Renew(Node(i), start_ + seconds(2));
  }
  ScanAt(seconds(2));
  ScanAt(milliseconds(3500));
  EXPECT_NE(findings_.notice, "");
}

TEST_F(LeasesTest, TwoSilentNodesAreLostHoweverFewThereAre) {
  Add(2);
  ScanAt(milliseconds(1500));
  EXPECT_EQ(findings_.notice, "");
  EXPECT_EQ(ScanAt(seconds(3)).size(), 2u);
}

TEST_F(LeasesTest, ThreeOfTenAreNotMoreThanTheFractionOfAPartition) {
  Add(10);
  for (int i = 4; i <= 10; ++i) {
    leases_.Renew(Node(i), start_ + seconds(1));
  }
  ScanAt(milliseconds(1500));
  EXPECT_EQ(findings_.notice, "");
}

TEST_F(LeasesTest, ShortDelaysOfTheCoordinatorAddUp) {
  Add(2);
  for (int i = 1; i <= 10; ++i) {
    leases_.ForgiveLateness({milliseconds(100), milliseconds(200)}, start_ + milliseconds(200 * i));
  }
  leases_.Renew(Node(2), start_ + milliseconds(2000));
  EXPECT_THAT(ScanAt(milliseconds(3499)), IsEmpty());
  EXPECT_FALSE(Node(1).suspect);
  ScanAt(milliseconds(3500));
  EXPECT_TRUE(Node(1).suspect);
  EXPECT_TRUE(Node(2).suspect);  // Since it was heard the coordinator was in time.
  EXPECT_EQ(ScanAt(milliseconds(4999)).size(), 0u);
  EXPECT_EQ(leases_.next_scan(), start_ + milliseconds(5000));
  EXPECT_EQ(ScanAt(milliseconds(5000)).size(), 2u);
}

TEST_F(LeasesTest, StreamThatBrokeHasItsTimeOnTheSameClock) {
  Add(1);
  leases_.Break(Node(1), start_);
  leases_.ForgiveLateness({milliseconds(200), milliseconds(400)}, start_ + milliseconds(450));
  EXPECT_THAT(ScanAt(milliseconds(649)), IsEmpty());
  EXPECT_EQ(ScanAt(milliseconds(650)).size(), 1u);
}

/// Before the first world is committed.
class LeasesBeforeTheJobTest : public LeasesTest {
 protected:
  LeasesBeforeTheJobTest() : early_(spec_) {}
  void AddEarly(int count) {
    for (int i = 1; i <= count; ++i) {
      job::Node node;
      node.info.incarnation = Incarnation(i);
      early_.Begin(nodes_.Insert(std::move(node)), now_);
    }
  }
  Leases early_;
};

TEST_F(LeasesBeforeTheJobTest, NobodyIsGivenUpWhoseConnectionStands) {
  AddEarly(4);
  EXPECT_THAT(early_.Scan(nodes_, start_ + seconds(2)).notice, "");
  EXPECT_TRUE(Node(1).suspect);
  EXPECT_THAT(early_.Scan(nodes_, start_ + std::chrono::hours(1)).lapses, IsEmpty());
  EXPECT_EQ(early_.next_scan(), MonoTime::max());
}

TEST_F(LeasesBeforeTheJobTest, WhoseStreamBrokeHasMoreTime) {
  AddEarly(1);
  early_.Break(Node(1), start_);
  EXPECT_THAT(early_.Scan(nodes_, start_ + milliseconds(1499)).lapses, IsEmpty());
  EXPECT_EQ(early_.Scan(nodes_, start_ + milliseconds(1500)).lapses.size(), 1u);
}

TEST_F(LeasesBeforeTheJobTest, WithTheJobEverybodyHasAWholeLease) {
  AddEarly(1);
  early_.Scan(nodes_, start_ + seconds(2));
  early_.JobRuns(start_ + seconds(10));
  EXPECT_EQ(early_.next_scan(), start_ + milliseconds(11'500));
  EXPECT_THAT(early_.Scan(nodes_, start_ + milliseconds(12'999)).lapses, IsEmpty());
  EXPECT_EQ(early_.Scan(nodes_, start_ + seconds(13)).lapses.size(), 1u);
}

}  // namespace
}  // namespace fsdprun
