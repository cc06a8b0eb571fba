#include "launcher/coordinator/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdprun {
namespace {

using job::NodeState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobSpec Bounds(int min, int max, bool ranks_bind = true) {
  JobSpec spec;
  spec.min_nodes = min;
  spec.max_nodes = max;
  spec.node_ranks_bind = ranks_bind;
  return spec;
}

NodeInfo Info(uint64_t who, std::optional<int> rank = {}) {
  NodeInfo info;
  info.incarnation = Incarnation(who);
  info.name = "node-" + std::to_string(who);
  info.address = "10.0.0." + std::to_string(who);
  info.requested_node_rank = rank;
  return info;
}

class Cluster {
 public:
  explicit Cluster(const JobSpec& spec) : spec_(spec) {}

  Membership::Admission Admit(const NodeInfo& info, uint64_t held = 0) {
    return membership_.Admit(info, Generation(held), now_);
  }
  job::Node& Node(uint64_t who) { return membership_.nodes().At(Incarnation(who)); }
  std::string Missing() { return membership_.Missing(membership_.Eligible()); }
  std::vector<uint64_t> Eligible() { return Numbers(membership_.Eligible()); }
  std::vector<uint64_t> Chosen() {
    std::vector<Incarnation> chosen;
    for (const Candidate& candidate : membership_.Choose(membership_.Eligible())) {
      chosen.push_back(candidate.node.incarnation);
    }
    return Numbers(chosen);
  }
  void Leave(uint64_t who) { membership_.SetLeaving(Node(who)); }
  /// Everybody but `heard` is suspected from now on.
  void FallSilent(const std::vector<uint64_t>& heard) {
    now_ += spec_.suspect_after;
    for (const uint64_t who : heard) {
      membership_.Heard(Node(who), now_);
    }
    membership_.ScanLeases(now_);
  }
  static std::vector<uint64_t> Numbers(const std::vector<Incarnation>& incarnations) {
    std::vector<uint64_t> numbers;
    numbers.reserve(incarnations.size());
    for (const Incarnation i : incarnations) {
      numbers.push_back(i.value());
    }
    return numbers;
  }

  const JobSpec spec_;
  Membership membership_{spec_};
  MonoTime now_{std::chrono::hours(1)};
};

TEST(MembershipTest, NodeWithoutWorkersIsRefused) {
  Cluster cluster(Bounds(1, 2));
  NodeInfo info = Info(1);
  info.local_world_size = 0;
  EXPECT_EQ(cluster.membership_.Refusal(info),
            "node node-1 offers 0 workers; at least 1 is needed");
  info.local_world_size = 1;
  EXPECT_EQ(cluster.membership_.Refusal(info), "");
}

TEST(MembershipTest, BindingRankOutOfRangeOrTakenIsRefused) {
  Cluster cluster(Bounds(1, 2));
  EXPECT_THAT(cluster.membership_.Refusal(Info(1, 2)), HasSubstr("outside 0..1"));
  EXPECT_THAT(cluster.membership_.Refusal(Info(1, -1)), HasSubstr("outside 0..1"));
  cluster.Admit(Info(1, 1));
  EXPECT_THAT(cluster.membership_.Refusal(Info(2, 1)),
              HasSubstr("taken by node node-1 (10.0.0.1)"));
  EXPECT_EQ(cluster.membership_.Refusal(Info(2, 0)), "");
  EXPECT_EQ(cluster.membership_.Refusal(Info(2)), "");
}

TEST(MembershipTest, RankOfASilentOrDisconnectedNodeGoesToTheNextThatAsks) {
  Cluster cluster(Bounds(1, 2));
  cluster.Admit(Info(1, 1));
  cluster.FallSilent({});
  EXPECT_EQ(cluster.membership_.Refusal(Info(2, 1)), "");
  cluster.membership_.Heard(cluster.Node(1), cluster.now_);
  EXPECT_NE(cluster.membership_.Refusal(Info(2, 1)), "");
  cluster.membership_.LostStream(cluster.Node(1), cluster.now_);
  EXPECT_EQ(cluster.membership_.Refusal(Info(2, 1)), "");
  EXPECT_EQ(cluster.Admit(Info(2, 1)).replaced, Incarnation(1));
}

TEST(MembershipTest, RankOfALeavingNodeIsNobodys) {
  Cluster cluster(Bounds(1, 2));
  cluster.Admit(Info(1, 1));
  cluster.Leave(1);
  EXPECT_EQ(cluster.membership_.Refusal(Info(2, 1)), "");
  EXPECT_EQ(cluster.Admit(Info(2, 1)).replaced, Incarnation());
}

TEST(MembershipTest, PreferredRankThatAnotherHasIsDroppedAndWarnedOfOnce) {
  Cluster cluster(Bounds(1, 4, /*ranks_bind=*/false));
  EXPECT_EQ(cluster.Admit(Info(1, 1)).warning, "");
  EXPECT_THAT(cluster.Admit(Info(2, 1)).warning, HasSubstr("which another node has"));
  EXPECT_EQ(cluster.Node(1).info.requested_node_rank, 1);
  EXPECT_EQ(cluster.Node(2).info.requested_node_rank, std::nullopt);
  EXPECT_EQ(cluster.Admit(Info(3, 4)).warning, "");
  EXPECT_EQ(cluster.Node(3).info.requested_node_rank, std::nullopt);
}

TEST(MembershipTest, NodeThatHoldsAGenerationIsCleanedFirst) {
  Cluster cluster(Bounds(1, 2));
  EXPECT_EQ(cluster.Admit(Info(1), 7).node->state, NodeState::kCleaning);
  EXPECT_EQ(cluster.Node(1).held, Generation(7));
  EXPECT_THAT(cluster.Eligible(), IsEmpty());
}

TEST(MembershipTest, OnlyConnectedSparesThatStayAndAreHeardAreEligible) {
  Cluster cluster(Bounds(1, 9));
  for (uint64_t who = 1; who <= 4; ++who) {
    cluster.Admit(Info(who));
  }
  cluster.membership_.JobRuns(cluster.now_);
  cluster.Leave(1);
  cluster.FallSilent({3, 4});
  EXPECT_TRUE(cluster.membership_.AwaitsLeaseDecision());
  cluster.membership_.LostStream(cluster.Node(3), cluster.now_);
  EXPECT_THAT(cluster.Eligible(), ElementsAre(4));
  EXPECT_EQ(cluster.membership_.eligible(), 1);
  cluster.membership_.Heard(cluster.Node(2), cluster.now_);
  cluster.membership_.Reattach(cluster.Node(3), cluster.now_);
  EXPECT_FALSE(cluster.membership_.AwaitsLeaseDecision());
  EXPECT_THAT(cluster.Eligible(), ElementsAre(2, 3, 4));
  EXPECT_EQ(cluster.membership_.CheckInvariants(), "");
}

TEST(MembershipTest, UntilAJobRunsASilentNodeWhoseConnectionStandsIsEligible) {
  Cluster cluster(Bounds(1, 9));
  cluster.Admit(Info(1));
  cluster.Admit(Info(2));
  cluster.FallSilent({2});
  EXPECT_TRUE(cluster.Node(1).suspect);
  EXPECT_FALSE(cluster.membership_.AwaitsLeaseDecision());
  EXPECT_THAT(cluster.Eligible(), ElementsAre(1, 2));
  cluster.membership_.JobRuns(cluster.now_);
  EXPECT_THAT(cluster.Eligible(), ElementsAre(2));
  EXPECT_EQ(cluster.membership_.CheckInvariants(), "");
}

TEST(MembershipTest, NodeThatIsChangedBehindItsBackIsCountedWrong) {
  Cluster cluster(Bounds(1, 9));
  cluster.Admit(Info(1));
  cluster.Node(1).leaving = true;
  EXPECT_EQ(
      cluster.membership_.CheckInvariants(),
      "0 nodes may be members, 0 are wanted and 0 are undecided, but 1, 1 and 0 were counted");
}

TEST(MembershipTest, WhoIsLeftOutIsChosenOnlyAsFarAsTheMinimumNeeds) {
  Cluster cluster(Bounds(2, 3));
  for (const uint64_t who : {1, 2, 3, 4}) {
    cluster.Admit(Info(who));
  }
  cluster.membership_.SetLeftOut(cluster.Node(1), true);
  EXPECT_THAT(cluster.Chosen(), ElementsAre(2, 3, 4));
  cluster.membership_.SetLeftOut(cluster.Node(4), true);
  EXPECT_THAT(cluster.Chosen(), ElementsAre(2, 3));
  EXPECT_EQ(cluster.membership_.usable(), 2);
  cluster.membership_.SetLeftOut(cluster.Node(3), true);
  EXPECT_THAT(cluster.Chosen(), ElementsAre(2, 1));
  EXPECT_EQ(cluster.membership_.usable(), 2);
  EXPECT_THAT(Cluster::Numbers(cluster.membership_.Wanted()), ElementsAre(2));
  cluster.membership_.Dismiss(Incarnation(2));
  cluster.membership_.Dismiss(Incarnation(1));
  cluster.membership_.Dismiss(Incarnation(3));
  EXPECT_EQ(cluster.membership_.usable(), 1);
  EXPECT_EQ(cluster.membership_.CheckInvariants(), "");
}

TEST(MembershipTest, NobodyWaitsForTheLeaseOfWhoIsLeftOut) {
  Cluster cluster(Bounds(1, 9));
  cluster.Admit(Info(1));
  cluster.Admit(Info(2));
  cluster.membership_.JobRuns(cluster.now_);
  cluster.FallSilent({2});
  EXPECT_TRUE(cluster.membership_.AwaitsLeaseDecision());
  cluster.membership_.SetLeftOut(cluster.Node(1), true);
  EXPECT_FALSE(cluster.membership_.AwaitsLeaseDecision());
  EXPECT_EQ(cluster.membership_.CheckInvariants(), "");
}

TEST(MembershipTest, WhoHasARankIsKnownWhateverBecomesOfIt) {
  Cluster cluster(Bounds(1, 9, /*ranks_bind=*/false));
  cluster.Admit(Info(1, 1));
  cluster.Admit(Info(2));
  cluster.membership_.MakeMember(Incarnation(2), 4);
  EXPECT_NE(cluster.Admit(Info(3, 4)).warning, "");
  EXPECT_EQ(cluster.Node(3).info.requested_node_rank, std::nullopt);
  cluster.membership_.Dismiss(Incarnation(1));
  cluster.Admit(Info(4, 1));
  EXPECT_EQ(cluster.Node(4).info.requested_node_rank, 1);
  cluster.membership_.DismissAll();
  cluster.Admit(Info(5, 4));
  EXPECT_EQ(cluster.Node(5).info.requested_node_rank, 4);
  EXPECT_EQ(cluster.membership_.CheckInvariants(), "");
}

TEST(MembershipTest, LeavingNodesLeaseIsNotWaitedFor) {
  Cluster cluster(Bounds(1, 2));
  cluster.Admit(Info(1));
  cluster.membership_.JobRuns(cluster.now_);
  cluster.Leave(1);
  cluster.FallSilent({});
  EXPECT_FALSE(cluster.membership_.AwaitsLeaseDecision());
}

TEST(MembershipTest, SurvivorsAreChosenBeforeRequestedRanksAndTheseBeforeArrival) {
  Cluster cluster(Bounds(1, 3));
  cluster.Admit(Info(4));
  cluster.Admit(Info(3));
  cluster.Admit(Info(2, 0));
  cluster.Admit(Info(1));
  cluster.Node(1).group_rank = 5;
  EXPECT_THAT(cluster.Chosen(), ElementsAre(1, 2, 4));
}

TEST(MembershipTest, MembersOfAWorldThatEndsAreSparesWithARankAndOthersHadNoPart) {
  Cluster cluster(Bounds(1, 9));
  cluster.Admit(Info(1));
  cluster.Admit(Info(2));
  cluster.Admit(Info(3), 7);
  cluster.membership_.MakeMember(Incarnation(1), 4);
  cluster.Node(2).group_rank = 3;
  EXPECT_THAT(cluster.Eligible(), ElementsAre(2));
  EXPECT_EQ(cluster.membership_.Choose({Incarnation(1)})[0].previous_group_rank, 4);
  cluster.membership_.EndWorld();
  EXPECT_EQ(cluster.Node(1).group_rank, 4);
  EXPECT_EQ(cluster.Node(2).group_rank, -1);
  EXPECT_EQ(cluster.Node(3).state, NodeState::kCleaning);
  EXPECT_THAT(cluster.Eligible(), ElementsAre(1, 2));
}

TEST(MembershipTest, MissingNamesWhoIsThereWhichRanksLackAndWhoHasGone) {
  Cluster cluster(Bounds(3, 3));
  EXPECT_EQ(cluster.Missing(), "0 of 3 joined");
  cluster.Admit(Info(1, 1));
  EXPECT_EQ(cluster.Missing(), "1 of 3 joined (node-1); missing node rank 0, 2");
  cluster.Admit(Info(2));
  EXPECT_EQ(cluster.Missing(), "2 of 3 joined (node-1, node-2)");
  EXPECT_EQ(cluster.membership_.Lose(Incarnation(1), "left").info.name, "node-1");
  EXPECT_EQ(cluster.Missing(), "1 of 3 joined (node-2); gone: node-1 (left)");
  cluster.membership_.ForgetLost();
  EXPECT_EQ(cluster.Missing(), "1 of 3 joined (node-2)");
}

TEST(MembershipTest, OfManyMissingRanksTheFirstAreNamed) {
  Cluster cluster(Bounds(20, 20));
  cluster.Admit(Info(1, 1));
  EXPECT_THAT(cluster.Missing(), HasSubstr("missing node rank 0, 2, 3, 4, 5, 6, 7, 8, ..."));
}

TEST(MembershipTest, LongListsAreCut) {
  Cluster cluster(Bounds(20, 20));
  for (uint64_t who = 1; who <= 18; ++who) {
    cluster.Admit(Info(who));
  }
  for (uint64_t who = 10; who <= 18; ++who) {
    cluster.membership_.Lose(Incarnation(who), "left");
  }
  EXPECT_THAT(cluster.Missing(),
              HasSubstr("9 of 20 joined (node-1, node-2, node-3, node-4, "
                        "node-5, node-6, node-7, node-8, ...); gone: node-11 ("));
}

TEST(MembershipTest, RankThatNobodyHasToTakeIsNotMissed) {
  Cluster cluster(Bounds(2, 2, /*ranks_bind=*/false));
  cluster.Admit(Info(1, 1));
  EXPECT_EQ(cluster.Missing(), "1 of 2 joined (node-1)");
}

TEST(MembershipTest, StrangersAreSparesThatStayAndHadNoPart) {
  Cluster cluster(Bounds(1, 9));
  for (uint64_t who = 1; who <= 3; ++who) {
    cluster.Admit(Info(who));
  }
  cluster.Admit(Info(4), 7);
  cluster.Node(1).group_rank = 0;
  cluster.Leave(2);
  EXPECT_THAT(Cluster::Numbers(cluster.membership_.Strangers()), ElementsAre(3));
}

TEST(MembershipTest, EveryAdmissionIsCounted) {
  Cluster cluster(Bounds(1, 9));
  cluster.Admit(Info(1));
  cluster.membership_.Dismiss(Incarnation(1));
  cluster.Admit(Info(1));
  cluster.membership_.AdmitToLastWords(Info(2, 77), cluster.now_);
  EXPECT_EQ(cluster.membership_.admissions(), 3u);
  EXPECT_EQ(cluster.Node(2).info.requested_node_rank, 77);
}

}  // namespace
}  // namespace fsdprun
