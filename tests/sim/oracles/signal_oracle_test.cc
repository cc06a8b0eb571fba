#include "tests/sim/oracles/signal_oracle.h"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

Incarnation AgentOn(int node, uint64_t life = 0) {
  return Incarnation(100 * life + static_cast<uint64_t>(node));
}

JobOutcome StoppedBy(int signal) {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kStoppedBySignal;
  outcome.exit_code = 1;
  outcome.signal = signal;
  return outcome;
}

/// Nodes 1, 2 and 3 of an allocation, and node 4 beside them.
class SignalOracleTest : public ::testing::Test {
 protected:
  SignalOracleTest() {
    for (const int node : {1, 2, 3, 4}) {
      Start(node, AgentOn(node));
    }
  }
  void Start(int node, Incarnation agent) {
    oracle_.AgentStarted(node);
    oracle_.Admitted(node, agent);
  }
  void Tell(Nanos at, int node, int signal = SIGTERM) {
    oracle_.AgentLeaves(node);
    oracle_.LeftHeard(at, AgentOn(node), {signal, true});
    oracle_.OrdersGiven(at);
  }
  void TellOfAll(Nanos at) {
    for (const int node : {1, 2, 3}) {
      Tell(at, node);
    }
  }

  SignalOracle oracle_{{.allocation = {1, 2, 3},
                        .spread = 5 * kSecond,
                        .lease = 2 * kSecond,
                        .longest_lease = 4 * kSecond,
                        .stop = 10 * kSecond}};
};

TEST_F(SignalOracleTest, SignalToAllEndsTheJob) {
  oracle_.WorldOrdered();
  TellOfAll(20 * kSecond);
  EXPECT_TRUE(oracle_.MayStop());
  SignalOracle failed = oracle_;
  SignalOracle late = oracle_;
  SignalOracle on = oracle_;
  oracle_.Decided(31 * kSecond, StoppedBy(SIGTERM));
  EXPECT_NO_COMPLAINT(oracle_);
  EXPECT_EQ(oracle_.questions(), 1);
  failed.Decided(21 * kSecond, FailedWith(NodeLoss("node-1", kGen1)));
  EXPECT_COMPLAINT(failed, "counts as failed");
  late.Decided(32 * kSecond, StoppedBy(SIGTERM));
  EXPECT_COMPLAINT(late, "2000 ms too late");
  on.WorldOrdered();
  EXPECT_COMPLAINT(on, "a world is ordered");
}

TEST_F(SignalOracleTest, NodeThatWasThereWithoutASignalLetsTheJobGoOn) {
  oracle_.WorldOrdered();
  Tell(20 * kSecond, 1);
  Tell(20 * kSecond, 2);
  Tell(20 * kSecond, 4);
  EXPECT_FALSE(oracle_.MayStop());
  SignalOracle on = oracle_;
  on.WorldOrdered();
  on.Decided(90 * kSecond, SucceededIn(kGen2));
  EXPECT_NO_COMPLAINT(on);
  EXPECT_EQ(on.questions(), 1);
  SignalOracle own = oracle_;
  own.StopHeard();
  own.Decided(21 * kSecond, StoppedBy(SIGINT));
  EXPECT_NO_COMPLAINT(own);
  oracle_.Decided(21 * kSecond, StoppedBy(SIGTERM));
  EXPECT_COMPLAINT(oracle_, "node 3, which was there");
}

TEST_F(SignalOracleTest, AgentThatCameBackHasNoSignal) {
  oracle_.WorldOrdered();
  Tell(20 * kSecond, 1);
  oracle_.AgentGone(20 * kSecond, 1);
  Start(1, AgentOn(1, 1));
  Tell(22 * kSecond, 2);
  Tell(22 * kSecond, 3);
  oracle_.Decided(23 * kSecond, StoppedBy(SIGTERM));
  EXPECT_COMPLAINT(oracle_, "node 1, which was there");
}

TEST_F(SignalOracleTest, BeforeTheFirstWorldAllHaveToTellWithinTheSpread) {
  SignalOracle others_to_come{{.allocation = {1, 2}, .spread = 5 * kSecond}};
  others_to_come.AgentStarted(1);
  others_to_come.Admitted(1, AgentOn(1));
  others_to_come.AgentLeaves(1);
  others_to_come.LeftHeard(kSecond, AgentOn(1), {SIGTERM, false});
  others_to_come.OrdersGiven(kSecond);
  others_to_come.Decided(kSecond, StoppedBy(SIGTERM));
  EXPECT_COMPLAINT(others_to_come, "of which not all of its nodes had told");

  Tell(kSecond, 1);
  Tell(5 * kSecond, 2);
  SignalOracle beyond = oracle_;
  beyond.AgentLeaves(3);
  beyond.LeftHeard(11 * kSecond, AgentOn(3), {SIGTERM, false});
  beyond.OrdersGiven(11 * kSecond);
  EXPECT_FALSE(beyond.MayStop());
  Tell(10 * kSecond, 3);
  EXPECT_TRUE(oracle_.MayStop());
}

TEST_F(SignalOracleTest, NodeWithoutAConnectionIsNotAsked) {
  oracle_.WorldOrdered();
  oracle_.StreamLost(19 * kSecond, AgentOn(3));
  SignalOracle back = oracle_;
  back.Admitted(3, AgentOn(3));
  for (SignalOracle* oracle : {&oracle_, &back}) {
    for (const int node : {1, 2}) {
      oracle->LeftHeard(20 * kSecond, AgentOn(node), {SIGTERM, true});
      oracle->OrdersGiven(20 * kSecond);
    }
    oracle->Decided(90 * kSecond, FailedWith(NodeLoss("node-3", kGen1)));
  }
  EXPECT_COMPLAINT(oracle_, "counts as failed");
  EXPECT_NO_COMPLAINT(back);
}

/// Whether the job must end if node 3 falls silent at `since`, before or after the others tell.
bool MustEnd(SignalOracle oracle, Nanos since, bool is_stopped, Nanos now) {
  oracle.WorldOrdered();
  if (is_stopped) {
    oracle.Paused(since, 3, 60 * kSecond);
  } else {
    oracle.Disturbed(since, 3, 60 * kSecond);
  }
  for (const int node : {1, 2}) {
    oracle.LeftHeard(20 * kSecond, AgentOn(node), {SIGTERM, true});
    oracle.OrdersGiven(20 * kSecond);
  }
  oracle.OrdersGiven(now);
  oracle.Decided(90 * kSecond, FailedWith(NodeLoss("node-3", kGen1)));
  return !oracle.complaint().empty();
}

TEST_F(SignalOracleTest, NodeThatFallsSilentCountsUntilItIsGivenUp) {
  EXPECT_TRUE(MustEnd(oracle_, 19 * kSecond, true, 25 * kSecond));
  EXPECT_FALSE(MustEnd(oracle_, 19 * kSecond, true, 24 * kSecond)) << "its lease may be extended";
  EXPECT_FALSE(MustEnd(oracle_, 19 * kSecond, false, 25 * kSecond)) << "it may be heard";
  EXPECT_TRUE(MustEnd(oracle_, 23 * kSecond, true, 29 * kSecond));
  EXPECT_FALSE(MustEnd(oracle_, 24 * kSecond, true, 30 * kSecond)) << "too late to belong to it";
}

TEST_F(SignalOracleTest, SilentNodeMayBeTakenForLost) {
  oracle_.WorldOrdered();
  oracle_.Disturbed(19 * kSecond, 3, 30 * kSecond);
  Tell(19 * kSecond, 1);
  Tell(19 * kSecond, 2);
  EXPECT_FALSE(oracle_.MayStop());
  oracle_.OrdersGiven(21 * kSecond);
  EXPECT_TRUE(oracle_.MayStop());
}

TEST_F(SignalOracleTest, CoordinatorThatStoodStillGivesUpNobodyAtOnce) {
  oracle_.CoordinatorPaused(18 * kSecond, 23 * kSecond);
  EXPECT_FALSE(MustEnd(oracle_, 19 * kSecond, true, 28 * kSecond));
  EXPECT_TRUE(MustEnd(oracle_, 19 * kSecond, true, 29 * kSecond));
}

TEST_F(SignalOracleTest, NodeThatIsGoneCountsFromWhenItsLastWordsMayBeHeard) {
  oracle_.WorldOrdered();
  oracle_.AgentGone(22 * kSecond, 3);
  SignalOracle cut = oracle_;
  cut.AgentStarted(3);
  cut.Admitted(3, AgentOn(3, 1));
  cut.Disturbed(22 * kSecond, 3, 24 * kSecond);
  cut.AgentGone(22 * kSecond, 3);
  for (SignalOracle* oracle : {&oracle_, &cut}) {
    for (const int node : {1, 2}) {
      oracle->LeftHeard(20 * kSecond, AgentOn(node), {SIGTERM, true});
      oracle->OrdersGiven(20 * kSecond);
    }
    oracle->OrdersGiven(30 * kSecond);
    oracle->Decided(90 * kSecond, FailedWith(NodeLoss("node-3", kGen1)));
  }
  EXPECT_COMPLAINT(oracle_, "counts as failed");
  EXPECT_NO_COMPLAINT(cut);
}

TEST_F(SignalOracleTest, OneNoticeIsEnough) {
  Tell(kSecond, 1, SIGUSR1);
  EXPECT_TRUE(oracle_.MayStop());
  oracle_.Decided(2 * kSecond, SucceededIn(kGen1));
  EXPECT_NO_COMPLAINT(oracle_) << "the workers were faster";
  Tell(kSecond, 2, SIGUSR1);
  oracle_.Decided(2 * kSecond, FailedWith(NodeLoss("node-1", kGen1)));
  EXPECT_COMPLAINT(oracle_, "counts as failed");
}

TEST_F(SignalOracleTest, NothingIsAskedWithoutAnAllocation) {
  SignalOracle oracle{{}};
  oracle.AgentStarted(1);
  oracle.Admitted(1, AgentOn(1));
  oracle.WorldOrdered();
  oracle.LeftHeard(kSecond, AgentOn(1), {SIGTERM, false});
  oracle.OrdersGiven(kSecond);
  oracle.Decided(2 * kSecond, StoppedBy(SIGTERM));
  EXPECT_NO_COMPLAINT(oracle);
  EXPECT_EQ(oracle.questions(), 0);
}

}  // namespace
}  // namespace fsdprun::sim
