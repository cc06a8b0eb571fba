#include "launcher/coordinator/quarantine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun {
namespace {

using job::NodeKey;
using job::WorldBreak;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = Quarantine::Finding::Kind;
using std::chrono::seconds;

NodeKey Key(const std::string& name) { return {name, "10.0.0.1"}; }

/// A worker of `name` was the first to fail.
WorldBreak Killed(const std::string& name, int rank = 3, int signal = 9) {
  return {.node = Key(name),
          .had_others = true,
          .is_of_several = false,
          .worker = WorldBreak::Worker{rank, 0, signal},
          .what = "rank " + std::to_string(rank) + " died"};
}

WorldBreak Lost(const std::string& name) {
  WorldBreak lost = Killed(name);
  lost.worker.reset();
  lost.what = "node " + name + " was silent";
  return lost;
}

class Case {
 public:
  explicit Case(int after = 3) {
    spec_.quarantine_after = after;
    spec_.quarantine_window = seconds(600);
  }
  /// What is found, such as "a is left out", when a world ends `after` the one before.
  std::vector<std::string> End(std::optional<WorldBreak> what, seconds after = seconds(60)) {
    now_ += after;
    return Texts(quarantine_.WorldEnded(std::move(what), now_));
  }
  /// What is found before a world that is formed so much later.
  std::vector<std::string> EndOverdue(seconds after) {
    now_ += after;
    return Texts(quarantine_.EndOverdue(now_));
  }
  std::vector<std::string> Needed(const std::vector<NodeKey>& nodes) {
    return Texts(quarantine_.Needed(nodes));
  }
  bool Holds(const std::string& name) const { return quarantine_.Find(Key(name)) != nullptr; }

  static std::vector<std::string> Texts(const Quarantine::Findings& findings) {
    std::vector<std::string> texts;
    for (const Quarantine::Finding& finding : findings) {
      const char* what = finding.kind == Kind::kLeftOut      ? " is left out"
                         : finding.kind == Kind::kTakenAgain ? " is taken again"
                                                             : " is needed";
      texts.push_back(finding.node.node.name + what);
    }
    return texts;
  }

  JobSpec spec_;
  Quarantine quarantine_{spec_};
  MonoTime now_{std::chrono::hours(1)};
};

// --- What is no evidence about a node

TEST(QuarantineTest, DifferentNodesThatFailInTurnAreTheProgramsFault) {
  Case c;
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(c.End(Killed("a")), IsEmpty());
    EXPECT_THAT(c.End(Killed("b")), IsEmpty());
  }
}

TEST(QuarantineTest, OneFailureElsewhereBeginsANewRow) {
  Case c;
  c.End(Killed("a"));
  c.End(Killed("a"));
  c.End(Killed("b"));
  EXPECT_THAT(c.End(Killed("a")), IsEmpty());
  EXPECT_THAT(c.End(Killed("a")), IsEmpty());
  EXPECT_THAT(c.End(Killed("a")), ElementsAre("a is left out"));
}

TEST(QuarantineTest, FailuresTooFarApartAreNoRow) {
  Case c;
  c.End(Killed("a"));
  c.End(Killed("a"), seconds(300));
  EXPECT_THAT(c.End(Killed("a"), seconds(301)), IsEmpty());
  EXPECT_THAT(c.End(Killed("a"), seconds(299)), ElementsAre("a is left out"));
}

TEST(QuarantineTest, WhoFailsAloneIsNoWorseThanOthers) {
  Case c;
  WorldBreak alone = Killed("a");
  alone.had_others = false;
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(c.End(alone), IsEmpty());
  }
}

TEST(QuarantineTest, NodesThatAreLostTogetherAreTheNetworksFault) {
  Case c;
  WorldBreak lost = Lost("a");
  lost.is_of_several = true;
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(c.End(lost), IsEmpty());
  }
  c.End(Lost("a"));
  c.End(Lost("a"));
  c.End(lost);
  EXPECT_THAT(c.End(Lost("a")), IsEmpty());
}

TEST(QuarantineTest, WorldsThatEndWithoutAFailureSayNothing) {
  Case c;
  c.End(Killed("a"));
  c.End(Killed("a"));
  EXPECT_THAT(c.End(std::nullopt), IsEmpty());
  EXPECT_THAT(c.End(Killed("a")), ElementsAre("a is left out"));
}

TEST(QuarantineTest, NobodyIsLeftOutUnlessThatIsAskedFor) {
  Case c(0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(c.End(Killed("a")), IsEmpty());
  }
}

TEST(QuarantineTest, TheSameNameAtAnotherAddressIsAnotherNode) {
  Case c(2);
  c.End(Killed("localhost"));
  WorldBreak other = Killed("localhost");
  other.node.address = "10.0.0.2";
  EXPECT_THAT(c.End(other), IsEmpty());
}

// --- What is

TEST(QuarantineTest, WhoeverEndsAsManyWorldsInARowIsLeftOut) {
  Case c;
  EXPECT_THAT(c.End(Killed("a")), IsEmpty());
  EXPECT_THAT(c.End(Killed("a", 2, 11)), IsEmpty());
  EXPECT_FALSE(c.Holds("a"));
  EXPECT_THAT(c.End(Killed("a")), ElementsAre("a is left out"));
  EXPECT_TRUE(c.Holds("a"));
  EXPECT_EQ(
      c.quarantine_.Describe(*c.quarantine_.Find(Key("a"))),
      "node a (10.0.0.1) was the first to fail in 3 worlds in a row within 600.0 s (the last: "
      "rank 3 died)");
}

TEST(QuarantineTest, NodeThatIsLostAgainAndAgainIsLeftOut) {
  Case c;
  c.End(Lost("a"));
  c.quarantine_.LostEarly(Lost("a"));
  EXPECT_THAT(c.End(std::nullopt), IsEmpty());
  c.quarantine_.LostEarly(Lost("b"));  // What ended the world was a failure.
  EXPECT_THAT(c.End(Lost("a")), ElementsAre("a is left out"));
}

TEST(QuarantineTest, NodesThatAreLostEarlyTogetherBeginTheRowAnew) {
  Case c(1);
  c.quarantine_.LostEarly(Lost("a"));
  c.quarantine_.LostEarly(Lost("b"));
  EXPECT_THAT(c.End(std::nullopt), IsEmpty());
  c.quarantine_.LostEarly(Lost("a"));
  c.quarantine_.LostEarly(Lost("a"));  // Two agents of it.
  EXPECT_THAT(c.End(std::nullopt), ElementsAre("a is left out"));
}

TEST(QuarantineTest, WhoIsLeftOutAndFailsAgainIsNotToldOfTwice) {
  Case c(1);
  EXPECT_THAT(c.End(Killed("a")), ElementsAre("a is left out"));
  EXPECT_THAT(c.End(Killed("a")), IsEmpty());
  EXPECT_TRUE(c.Holds("a"));
}

// --- What ends it

TEST(QuarantineTest, TheSameRankThatFailsElsewhereAcquitsTheNode) {
  Case c(2);
  c.End(Killed("a", 3, 9));
  c.End(Killed("a", 3, 9));
  EXPECT_THAT(c.End(Killed("b", 3, 11)), ElementsAre("a is taken again"));
  EXPECT_FALSE(c.Holds("a"));
}

TEST(QuarantineTest, TheSameEndElsewhereAcquitsTheNode) {
  Case c(2);
  c.End(Killed("a", 3, 9));
  c.End(Killed("a", 3, 9));
  WorldBreak alone = Killed("b", 1, 9);
  alone.had_others = false;  // Of two nodes, the one that is left.
  EXPECT_THAT(c.End(alone), ElementsAre("a is taken again"));
}

TEST(QuarantineTest, AnotherFailureElsewhereDoesNot) {
  Case c(2);
  c.End(Killed("a", 3, 9));
  c.End(Killed("a", 3, 9));
  EXPECT_THAT(c.End(Killed("b", 1, 11)), IsEmpty());
  EXPECT_THAT(c.End(Lost("c")), IsEmpty());
  EXPECT_TRUE(c.Holds("a"));
}

TEST(QuarantineTest, TheSameLongAfterDoesNot) {
  Case c(2);
  c.End(Killed("a"));
  c.End(Killed("a"));
  EXPECT_THAT(c.End(Killed("b"), seconds(601)), IsEmpty());
  EXPECT_TRUE(c.Holds("a"));
}

TEST(QuarantineTest, WorkersThatFailElsewhereDoNotAcquitANodeThatWasLost) {
  Case c(2);
  c.End(Lost("a"));
  c.End(Lost("a"));
  EXPECT_THAT(c.End(Killed("b")), IsEmpty());
  EXPECT_THAT(c.End(Lost("c")), IsEmpty());
  EXPECT_TRUE(c.Holds("a"));
}

TEST(QuarantineTest, ItEndsInTimeAndTheNextIsTwiceAsLongButNotWithoutEnd) {
  Case c(1);
  const seconds window(600);
  for (const int windows : {6, 12, 24, 48, 48}) {
    EXPECT_THAT(c.End(Killed("a")), ElementsAre("a is left out"));
    EXPECT_THAT(c.EndOverdue(windows * window - seconds(1)), IsEmpty());
    EXPECT_TRUE(c.Holds("a"));
    EXPECT_THAT(c.EndOverdue(seconds(1)), ElementsAre("a is taken again"));
    EXPECT_FALSE(c.Holds("a"));
  }
  EXPECT_EQ(c.quarantine_.changes(), 10u);
}

TEST(QuarantineTest, EachNodeHasATimeOfItsOwn) {
  Case c(1);
  c.End(Killed("b", 1, 11));
  c.End(Lost("a"));
  EXPECT_THAT(c.EndOverdue(seconds(3600 - 60)), ElementsAre("b is taken again"));
  EXPECT_THAT(c.EndOverdue(seconds(60)), ElementsAre("a is taken again"));
}

TEST(QuarantineTest, WhoIsAcquittedHasNeverBeenInQuarantine) {
  Case c(1);
  c.End(Killed("a"));
  WorldBreak alone = Killed("b");
  alone.had_others = false;
  EXPECT_THAT(c.End(alone), ElementsAre("a is taken again"));
  c.End(Killed("a"));
  EXPECT_THAT(c.EndOverdue(seconds(3600)), ElementsAre("a is taken again"));
}

TEST(QuarantineTest, NodeThatIsNeededIsToldOfOnceUntilItCanBeLeftOutAgain) {
  Case c(1);
  c.End(Killed("a"));
  EXPECT_THAT(c.Needed({Key("a")}), ElementsAre("a is needed"));
  EXPECT_THAT(c.Needed({Key("a")}), IsEmpty());
  EXPECT_THAT(c.Needed({}), IsEmpty());
  EXPECT_THAT(c.Needed({Key("a")}), ElementsAre("a is needed"));
  EXPECT_TRUE(c.Holds("a"));
}

// --- What a successor knows

TEST(QuarantineTest, ASuccessorLeavesOutTheSameNodesAndMayAcquitThem) {
  Case before(1);
  before.End(Killed("b", 1, 11));
  before.End(Lost("a"));
  EXPECT_EQ(before.quarantine_.changes(), 2u);
  Case after(1);
  after.quarantine_.Restore(before.quarantine_.ToRecord(), after.now_);
  EXPECT_TRUE(after.Holds("a"));
  EXPECT_TRUE(after.Holds("b"));
  EXPECT_THAT(after.End(Killed("c", 2, 11)), ElementsAre("b is taken again", "c is left out"));
}

TEST(QuarantineTest, ASuccessorKnowsForHowLongAndBeginsThatAnew) {
  Case before(1);
  before.End(Killed("a"));
  before.EndOverdue(seconds(3600));
  before.End(Killed("a"));
  Case after(1);
  after.quarantine_.Restore(before.quarantine_.ToRecord(), after.now_);
  EXPECT_THAT(after.EndOverdue(seconds(7199)), IsEmpty());
  EXPECT_THAT(after.EndOverdue(seconds(1)), ElementsAre("a is taken again"));
  after.End(Killed("a"));
  EXPECT_THAT(after.EndOverdue(seconds(4 * 3600 - 1)), IsEmpty());
  EXPECT_THAT(after.EndOverdue(seconds(1)), ElementsAre("a is taken again"));
}

TEST(QuarantineTest, ASuccessorThatIsToLeaveOutNobodyDoesNot) {
  Case before(1);
  before.End(Killed("a"));
  Case after(0);
  after.quarantine_.Restore(before.quarantine_.ToRecord(), after.now_);
  EXPECT_FALSE(after.Holds("a"));
}

// --- The report of a world's failures

TEST(QuarantineTest, BreakIsTheRootCause) {
  FailureReport report;
  report.root.node_name = "a";
  report.root.node_address = "10.0.0.1";
  report.root.what = "rank 3 died of signal 9";
  report.root.worker.emplace();
  report.root.worker->rank = 3;
  report.root.worker->signal = 9;
  const WorldBreak found = job::BreakOf(report, /*had_others=*/true);
  EXPECT_EQ(found.node, Key("a"));
  EXPECT_EQ(found.worker->rank, 3);
  EXPECT_EQ(found.worker->signal, 9);
  EXPECT_THAT(found.what, HasSubstr("signal 9"));
  EXPECT_TRUE(found.had_others);
  EXPECT_FALSE(found.is_of_several);
}

TEST(QuarantineTest, LossOfSeveralNodesIsToldFromTheLossOfOne) {
  FailureReport report;
  report.root.kind = CauseKind::kNodeLost;
  report.root.node_name = "a";
  Failure other = report.root;
  report.others = {other};
  EXPECT_FALSE(job::BreakOf(report, true).is_of_several);
  other.node_name = "b";
  report.others.push_back(other);
  EXPECT_TRUE(job::BreakOf(report, true).is_of_several);
  report.root.kind = CauseKind::kKeeperDied;
  EXPECT_FALSE(job::BreakOf(report, true).is_of_several);
}

}  // namespace
}  // namespace fsdprun
