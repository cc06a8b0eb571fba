#include "tests/sim/oracles/recovery_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr RecoveryOracle::Job kJob{.min_nodes = 2,
                                   .max_nodes = 3,
                                   .stop_grace = 4 * kSecond,
                                   .stop_margin = 8 * kSecond,
                                   .lease = 6 * kSecond,
                                   .prepare_timeout = 20 * kSecond,
                                   .last_call = 30 * kSecond};
constexpr Nanos kSlack = RecoveryOracle::kSlack;

class RecoveryOracleTest : public ::testing::Test {
 protected:
  RecoveryOracleTest() {
    for (const int node : {1, 2, 3}) {
      Join(oracle_, 0, node);
    }
  }
  static void Join(RecoveryOracle& oracle, Nanos at, int node) {
    oracle.AgentStarted(node);
    oracle.StreamOpened(node);
    oracle.Admitted(at, node);
  }
  static void Order(RecoveryOracle& oracle, Nanos at, Generation g, const std::set<int>& members) {
    for (const int node : members) {
      oracle.WorldOrdered(node, g, true);
    }
    oracle.OrdersGiven(at);
  }
  void Stop(Nanos at, const std::set<int>& members) {
    oracle_.StopOrdered(at, 1, kGen1, 2 * kSecond);
    for (const int node : members) {
      oracle_.ToldToStop(node, kGen1);
    }
  }
  /// The next world with `members` is late after `limit`, and not before.
  void ExpectLimit(Nanos limit, const std::set<int>& members) {
    RecoveryOracle late = oracle_;
    Order(oracle_, limit, kGen2, members);
    EXPECT_NO_COMPLAINT(oracle_);
    Order(late, limit + kMilli, kGen2, members);
    EXPECT_COMPLAINT(late, "generation 2 was ordered 1 ms late");
  }
  /// The stop of generation 1 is late after `limit`, and not before.
  void ExpectDetectionLimit(Nanos limit) {
    RecoveryOracle late = oracle_;
    oracle_.StopOrdered(limit, 1, kGen1, 0);
    EXPECT_NO_COMPLAINT(oracle_);
    late.StopOrdered(limit + kMilli, 1, kGen1, 0);
    EXPECT_COMPLAINT(late, "came 1 ms late");
  }

  FaultLedger ledger_{kJob.lease};
  RecoveryOracle oracle_{ledger_, kJob};
};

// --- Detection

TEST_F(RecoveryOracleTest, AFaultStopsTheWorldWithinTheLease) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  ledger_.Add(WorkerExitFault(11, 10 * kSecond, kGen1));
  ExpectDetectionLimit(10 * kSecond + kJob.lease + kSlack);
}

TEST_F(RecoveryOracleTest, TheLeaseBeginsWhenTheNodeAndTheCoordinatorGoOn) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  InjectedFault fault = WorkerExitFault(11, 10 * kSecond, kGen1);
  fault.node = 2;
  ledger_.Add(fault);
  ledger_.Add(NodeFault(FaultKind::kPartition, 12 * kSecond, 14 * kSecond));
  InjectedFault pause = NodeFault(FaultKind::kPauseCoordinator, 18 * kSecond, 25 * kSecond);
  pause.node = kCoordinatorNode;
  ledger_.Add(pause);
  ExpectDetectionLimit(25 * kSecond + kJob.lease + kSlack);
}

TEST_F(RecoveryOracleTest, AHungPreparationIsStoppedAfterItsTimeout) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  InjectedFault hung = NodeFault(FaultKind::kHangPrepare, 2 * kSecond, 2 * kSecond);
  hung.generation = kGen1;
  ledger_.Add(hung);
  FaultLedger restarted = ledger_;
  restarted.Add(NodeFault(FaultKind::kKillKeeper, 3 * kSecond, 3 * kSecond));
  RecoveryOracle prepared(restarted, kJob);
  Order(prepared, kSecond, kGen1, {1, 2, 3});
  prepared.StopOrdered(60 * kSecond, 1, kGen1, 0);
  EXPECT_NO_COMPLAINT(prepared);
  FaultLedger replaced = ledger_;
  replaced.Add(NodeFault(FaultKind::kReplaceAgent, 3 * kSecond, 3 * kSecond));
  RecoveryOracle anew(replaced, kJob);
  Order(anew, kSecond, kGen1, {1, 2, 3});
  anew.StopOrdered(60 * kSecond, 1, kGen1, 0);
  EXPECT_NO_COMPLAINT(anew);
  ExpectDetectionLimit(2 * kSecond + kJob.prepare_timeout + kSlack);
}

// --- Reaction

TEST_F(RecoveryOracleTest, AFullWorldFollowsTheLastReportAtOnce) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  Stop(10 * kSecond, {1, 2, 3});
  for (const int node : {1, 2, 3}) {
    oracle_.StoppedHeard((10 + node) * kSecond, node, kGen1);
  }
  ExpectLimit(13 * kSecond + kSlack, {1, 2, 3});
}

TEST_F(RecoveryOracleTest, ANodeThatComesAgainDuringAStopHasNoPartInItsGrace) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  Stop(10 * kSecond, {1, 2});
  Join(oracle_, 11 * kSecond, 3);
  oracle_.StopOrdered(11 * kSecond, 3, kGen1, 0);
  oracle_.StoppedHeard(11 * kSecond, 3, kGen1);
  oracle_.StoppedHeard(11 * kSecond, 2, kGen1);
  ExpectLimit(12 * kSecond + kJob.stop_margin + kSlack, {2, 3});
}

TEST_F(RecoveryOracleTest, ASmallerWorldWaitsALeaseForTheNodeInTrouble) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  oracle_.StreamClosed(9 * kSecond, 3);
  oracle_.AgentGone(9 * kSecond, 3);
  Stop(10 * kSecond, {1, 2});
  oracle_.StoppedHeard(11 * kSecond, 1, kGen1);
  oracle_.StoppedHeard(20 * kSecond, 2, kGen1);
  // Node 3 was not told: its loss is over with the margin of the stop at the latest.
  ExpectLimit(std::max(20 * kSecond + kJob.lease, 12 * kSecond + kJob.stop_margin) + kSlack,
              {1, 2});
}

TEST_F(RecoveryOracleTest, AMemberThatDoesNotReportDelaysTheWorldByGraceAndMargin) {
  oracle_.AgentLeaves(3);
  Order(oracle_, kSecond, kGen1, {1, 2});
  Join(oracle_, 2 * kSecond, 4);
  Stop(10 * kSecond, {1, 2});
  oracle_.StoppedHeard(11 * kSecond, 1, kGen1);
  oracle_.Dismissed(2);
  ExpectLimit(10 * kSecond + 2 * kSecond + kJob.stop_margin + kSlack, {1, 4});
}

TEST_F(RecoveryOracleTest, AMemberThatWasDeadFromTheStartIsMissedLater) {
  oracle_.AgentLeaves(3);
  oracle_.WorldOrdered(1, kGen1, true);
  oracle_.WorldOrdered(2, kGen1, false);
  oracle_.OrdersGiven(kSecond);
  Stop(10 * kSecond, {1, 2});
  for (const int node : {1, 2}) {
    oracle_.StoppedHeard(11 * kSecond, node, kGen1);
  }
  ExpectLimit(10 * kSecond + 2 * kSecond + kJob.stop_margin + kSlack, {1, 2});
}

TEST_F(RecoveryOracleTest, APausedCoordinatorReactsWhenItGoesOn) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  Stop(10 * kSecond, {1, 2, 3});
  for (const int node : {1, 2, 3}) {
    oracle_.StoppedHeard(11 * kSecond, node, kGen1);
  }
  oracle_.CoordinatorPaused(11 * kSecond, 30 * kSecond);
  ExpectLimit(30 * kSecond + kSlack, {1, 2, 3});
}

TEST_F(RecoveryOracleTest, AMissingMemberLosesNoTimeToAPauseOfTheCoordinator) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  oracle_.CoordinatorPaused(5 * kSecond, 8 * kSecond);
  Stop(10 * kSecond, {1, 2, 3});
  for (const int node : {1, 2}) {
    oracle_.StoppedHeard(11 * kSecond, node, kGen1);
  }
  oracle_.AgentGone(11 * kSecond, 3);
  oracle_.CoordinatorPaused(11 * kSecond, 29 * kSecond);
  oracle_.CoordinatorPaused(12 * kSecond, 20 * kSecond);
  oracle_.CoordinatorPaused(28 * kSecond, 30 * kSecond);
  Join(oracle_, 31 * kSecond, 3);  // The agent that was told to stop stays missing.
  ExpectLimit((10 + 19 + 2) * kSecond + kJob.stop_margin + kSlack, {1, 2, 3});
}

TEST_F(RecoveryOracleTest, WithTooFewNodesNoTimeCounts) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  Stop(10 * kSecond, {1, 2, 3});
  oracle_.StoppedHeard(11 * kSecond, 1, kGen1);
  for (const int node : {2, 3}) {
    oracle_.AgentGone(11 * kSecond, node);
  }
  for (const int node : {2, 3}) {
    Join(oracle_, 100 * kSecond, node);
  }
  ExpectLimit(100 * kSecond + kSlack, {1, 2, 3});
}

TEST_F(RecoveryOracleTest, AJobFailsAsSoonAsItsLastWorldHasStopped) {
  Order(oracle_, kSecond, kGen1, {1, 2, 3});
  Stop(10 * kSecond, {1, 2, 3});
  for (const int node : {1, 2, 3}) {
    oracle_.StoppedHeard(11 * kSecond, node, kGen1);
  }
  RecoveryOracle late = oracle_;
  oracle_.WorldFailedJob(11 * kSecond + kSlack);
  EXPECT_NO_COMPLAINT(oracle_);
  late.WorldFailedJob(11 * kSecond + kSlack + kMilli);
  EXPECT_COMPLAINT(late, "the job's end came 1 ms late");
}

// --- Size

TEST_F(RecoveryOracleTest, AWorldIsNeitherSmallerNorLargerThanAllowed) {
  oracle_.AgentStarted(4);
  for (const std::set<int>& members : {std::set<int>{1}, std::set<int>{1, 2, 3, 4}}) {
    RecoveryOracle oracle = oracle_;
    Order(oracle, kSecond, kGen1, members);
    EXPECT_COMPLAINT(oracle, "is outside 2 to 3");
  }
}

TEST_F(RecoveryOracleTest, ADeadAgentAndItsSuccessorCountAsTwo) {
  oracle_.WorldOrdered(1, kGen1, false);
  Order(oracle_, kSecond, kGen1, {1, 2});
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(RecoveryOracleTest, AWorldHasEveryNodeThatIsReady) {
  RecoveryOracle full = oracle_;
  Join(full, 0, 4);
  Order(full, kSecond, kGen1, {1, 2, 3});
  EXPECT_NO_COMPLAINT(full);
  Order(oracle_, kSecond, kGen1, {1, 2});
  EXPECT_COMPLAINT(oracle_, "leaves out node 3, which has been ready for 1000 ms");
}

TEST_F(RecoveryOracleTest, WorldHasWhoIsLeftOutOnlyIfItNeedsTo) {
  oracle_.LeftOut(3, true);
  RecoveryOracle larger = oracle_;
  RecoveryOracle smallest = oracle_;
  RecoveryOracle admitted = oracle_;
  Order(oracle_, 30 * kSecond, kGen1, {1, 2});
  EXPECT_NO_COMPLAINT(oracle_);
  Order(larger, 30 * kSecond, kGen1, {1, 2, 3});
  EXPECT_COMPLAINT(larger, "has node 3, which is left out");
  smallest.AgentGone(0, 2);
  Order(smallest, 30 * kSecond, kGen1, {1, 3});
  EXPECT_NO_COMPLAINT(smallest);
  admitted.Admitted(kSecond, 3);
  Order(admitted, 30 * kSecond, kGen1, {1, 2});
  EXPECT_COMPLAINT(admitted, "leaves out node 3");
}

TEST_F(RecoveryOracleTest, ANodeThatMayNotBeReadyMayBeLeftOut) {
  RecoveryOracle closed = oracle_;
  closed.StreamClosed(kSecond, 3);
  RecoveryOracle leaving = oracle_;
  leaving.AgentLeaves(3);
  RecoveryOracle dismissed = oracle_;
  dismissed.Dismissed(3);
  RecoveryOracle gone = oracle_;
  gone.AgentGone(kSecond, 3);
  RecoveryOracle busy = oracle_;
  busy.ToldToStop(3, kGen1);
  RecoveryOracle disturbed = oracle_;
  disturbed.Disturbed(0, 3, 2 * kSecond);
  for (RecoveryOracle* oracle : {&closed, &leaving, &dismissed, &gone, &busy, &disturbed}) {
    Order(*oracle, 2 * kSecond, kGen2, {1, 2});
    EXPECT_NO_COMPLAINT(*oracle);
  }
  oracle_.ToldToStop(3, kGen1);
  oracle_.JoinedIdle(kSecond, 3);
  Order(oracle_, 2 * kSecond, kGen2, {1, 2});
  EXPECT_COMPLAINT(oracle_, "leaves out node 3");
}

TEST_F(RecoveryOracleTest, AWorldHasNoNodeThatIsLongGone) {
  oracle_.AgentGone(kSecond, 3);
  RecoveryOracle soon = oracle_;
  Order(soon, kSecond + kJob.lease + kSlack, kGen1, {1, 2, 3});
  EXPECT_NO_COMPLAINT(soon);
  Order(oracle_, kSecond + kJob.lease + kSlack + kMilli, kGen1, {1, 2, 3});
  EXPECT_COMPLAINT(oracle_, "has node 3, which is long gone");
}

TEST_F(RecoveryOracleTest, WhatANodeHasSaidLastMayLieInItsLinkUntilThatIsWhole) {
  oracle_.Disturbed(0, 3, 9 * kSecond);
  oracle_.AgentGone(kSecond, 3);
  RecoveryOracle soon = oracle_;
  Order(soon, 9 * kSecond + kJob.lease + kSlack, kGen1, {1, 2, 3});
  EXPECT_NO_COMPLAINT(soon);
  Order(oracle_, 9 * kSecond + kJob.lease + kSlack + kMilli, kGen1, {1, 2, 3});
  EXPECT_COMPLAINT(oracle_, "has node 3, which is long gone");
}

}  // namespace
}  // namespace fsdprun::sim
