#include "tests/sim/oracles/outcome_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

class OutcomeOracleTest : public ::testing::Test {
 protected:
  void Order(Nanos at, Generation g, int restart_count) {
    for (const int node : {1, 2}) {
      ledger_.WorldOrdered(at, g, node);
    }
    oracle_.WorldOrdered(g, restart_count, 2);
  }
  void Inject(const InjectedFault& fault) { ledger_.Add(fault); }
  void Decide(Nanos at, const JobOutcome& outcome) {
    ledger_.JobDecided(at);
    oracle_.Decided(at, outcome);
  }

  FaultLedger ledger_{6 * kSecond};
  OutcomeOracle oracle_{ledger_, {.min_nodes = 2, .max_restarts = 1, .join_timeout = 60 * kSecond}};
};

// --- Success

TEST_F(OutcomeOracleTest, SuccessRequiresEveryRankToFinish) {
  Order(0, kGen1, 0);
  oracle_.RankFinished(kGen1, 0);
  OutcomeOracle all = oracle_;
  all.RankFinished(kGen1, 1);
  all.Decided(kSecond, SucceededIn(kGen1));
  EXPECT_NO_COMPLAINT(all);
  Decide(kSecond, SucceededIn(kGen1));
  EXPECT_COMPLAINT(oracle_, "only 1 of 2 ranks");
}

TEST_F(OutcomeOracleTest, RanksOfAnEarlierGenerationDoNotCount) {
  Order(0, kGen1, 0);
  oracle_.RankFinished(kGen1, 0);
  Inject(WorkerExitFault(11, kSecond, kGen1));
  Order(2 * kSecond, kGen2, 1);
  oracle_.RankFinished(kGen2, 1);
  Decide(3 * kSecond, SucceededIn(kGen2));
  EXPECT_COMPLAINT(oracle_, "only 1 of 2 ranks");
}

TEST_F(OutcomeOracleTest, SuccessHasExitCodeZero) {
  Order(0, kGen1, 0);
  oracle_.RankFinished(kGen1, 0);
  oracle_.RankFinished(kGen1, 1);
  JobOutcome outcome = SucceededIn(kGen1);
  outcome.exit_code = 1;
  Decide(kSecond, outcome);
  EXPECT_COMPLAINT(oracle_, "exit code 1");
}

// --- Deadline and operator

TEST_F(OutcomeOracleTest, AnUnfinishedJobMissesItsDeadlineUnlessItsCoordinatorDied) {
  Order(0, kGen1, 0);
  OutcomeOracle died = oracle_;
  died.CoordinatorDied();
  died.DeadlinePassed(100 * kSecond);
  EXPECT_NO_COMPLAINT(died);
  OutcomeOracle stopped = oracle_;
  stopped.StopHeard();
  stopped.DeadlinePassed(100 * kSecond);
  EXPECT_COMPLAINT(stopped, "operator has stopped it");
  oracle_.DeadlinePassed(100 * kSecond);
  EXPECT_COMPLAINT(oracle_, "has not done its work");
}

TEST_F(OutcomeOracleTest, AJobMayWaitForNodesBeyondItsDeadlineButNotBeyondTheJoinTimeout) {
  Order(0, kGen1, 0);
  oracle_.NodeArrived(1);
  oracle_.NodeArrived(2);
  OutcomeOracle enough = oracle_;
  enough.DeadlinePassed(100 * kSecond);
  EXPECT_COMPLAINT(enough, "has not done its work");
  oracle_.NodeGone(80 * kSecond, 2);
  oracle_.DeadlinePassed(100 * kSecond);
  EXPECT_NO_COMPLAINT(oracle_);
  OutcomeOracle stopped = oracle_;
  stopped.StopHeard();
  stopped.DeadlinePassed(100 * kSecond);
  EXPECT_COMPLAINT(stopped, "operator has stopped it");
  oracle_.DeadlinePassed(148 * kSecond);
  EXPECT_COMPLAINT(oracle_, "has not done its work");
}

TEST_F(OutcomeOracleTest, AJobHasSettledIfItsLastWorldRuns) {
  oracle_.RankStarted(kGen1, 0);
  Order(0, kGen1, 0);
  oracle_.RankStarted(kGen1, 0);
  OutcomeOracle started = oracle_;
  started.RankStarted(kGen1, 1);
  started.SettlingTimePassed();
  EXPECT_NO_COMPLAINT(started);
  OutcomeOracle stopping = started;
  stopping.StopOrdered(kGen1);
  stopping.SettlingTimePassed();
  EXPECT_COMPLAINT(stopping, "neither running nor finished");
  started.StopHeard();
  started.SettlingTimePassed();
  EXPECT_COMPLAINT(started, "operator has stopped it");
  oracle_.SettlingTimePassed();
  EXPECT_COMPLAINT(oracle_, "neither running nor finished");
}

TEST_F(OutcomeOracleTest, AJobIsStoppedBySignalOnlyIfOneWasSent) {
  Order(0, kGen1, 0);
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kStoppedBySignal;
  outcome.exit_code = 1;
  Decide(kSecond, outcome);
  EXPECT_COMPLAINT(oracle_, "a signal that nobody sent");
}

TEST_F(OutcomeOracleTest, AStoppedJobDoesNotEndAsFailed) {
  Order(0, kGen1, 0);
  Inject(WorkerExitFault(11, kSecond, kGen1));
  Order(2 * kSecond, kGen2, 1);
  Inject(WorkerExitFault(12, 3 * kSecond, kGen2));
  oracle_.StopHeard();
  Decide(4 * kSecond, FailedWith(WorkerFailure("node-1", 12, kGen2)));
  EXPECT_COMPLAINT(oracle_, "yet ended as a failure");
}

// --- Failure

TEST_F(OutcomeOracleTest, AJobFailsOnlyAfterItsRestartBudgetIsSpent) {
  Order(0, kGen1, 0);
  Inject(WorkerExitFault(11, kSecond, kGen1));
  OutcomeOracle early = oracle_;
  early.Decided(2 * kSecond, FailedWith(WorkerFailure("node-1", 11, kGen1)));
  EXPECT_COMPLAINT(early, "gave up after 0 of 1 restarts");

  Order(2 * kSecond, kGen2, 1);
  Inject(WorkerExitFault(12, 3 * kSecond, kGen2));
  Decide(4 * kSecond, FailedWith(WorkerFailure("node-1", 12, kGen2)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OutcomeOracleTest, AnInvalidConfigurationEndsTheJobAtOnce) {
  Order(0, kGen1, 0);
  InjectedFault fault = WorkerExitFault(11, kSecond, kGen1);
  fault.kind = FaultKind::kConfigExit;
  Inject(fault);
  Decide(2 * kSecond, FailedWith(WorkerFailure("node-1", 11, kGen1)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OutcomeOracleTest, AFailedJobHasAFailureReport) {
  Order(0, kGen1, 0);
  Inject(WorkerExitFault(11, kSecond, kGen1));
  JobOutcome outcome = FailedWith(WorkerFailure("node-1", 11, kGen1));
  outcome.failure.reset();
  Decide(2 * kSecond, outcome);
  EXPECT_COMPLAINT(oracle_, "without a failure report");
}

TEST_F(OutcomeOracleTest, OnlyAWorldCanFail) {
  Decide(kSecond, FailedWith(WorkerFailure("node-1", 11, kGen1)));
  EXPECT_COMPLAINT(oracle_, "failed before its first world");
}

TEST_F(OutcomeOracleTest, AJoinTimeoutRequiresTooFewNodesForTheWholeTimeout) {
  Failure timeout;
  timeout.kind = CauseKind::kJoinTimeout;
  oracle_.NodeArrived(0);
  OutcomeOracle same_rank = oracle_;
  same_rank.NodeArrived(0);
  same_rank.Decided(71 * kSecond, FailedWith(timeout));
  EXPECT_NO_COMPLAINT(same_rank);

  oracle_.NodeArrived(1);
  OutcomeOracle enough = oracle_;
  enough.Decided(90 * kSecond, FailedWith(timeout));
  EXPECT_COMPLAINT(enough, "of which there were enough");

  oracle_.NodeGone(10 * kSecond, 1);
  OutcomeOracle early = oracle_;
  early.Decided(40 * kSecond, FailedWith(timeout));
  EXPECT_COMPLAINT(early, "of which there were enough");
  Decide(71 * kSecond, FailedWith(timeout));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OutcomeOracleTest, AMissingProgramEndsTheJobOnlyBeforeItsFirstWorld) {
  Failure missing;
  missing.kind = CauseKind::kCannotStart;
  OutcomeOracle had_it = oracle_;
  had_it.Decided(kSecond, FailedWith(missing));
  EXPECT_COMPLAINT(had_it, "for want of the program");

  oracle_.ProgramIsMissing();
  OutcomeOracle at_once = oracle_;
  at_once.Decided(kSecond, FailedWith(missing));
  EXPECT_NO_COMPLAINT(at_once);

  Order(0, kGen1, 0);
  Decide(2 * kSecond, FailedWith(missing));
  EXPECT_COMPLAINT(oracle_, "for want of the program");
}

// --- Restarts that are charged

TEST_F(OutcomeOracleTest, AGenerationChargesAtMostOneRestart) {
  Order(0, kGen1, 0);
  Inject(WorkerExitFault(11, kSecond, kGen1));
  OutcomeOracle back = oracle_;
  back.WorldOrdered(kGen2, -1, 2);
  EXPECT_COMPLAINT(back, "-1 restarts were charged");
  Order(2 * kSecond, kGen2, 2);
  EXPECT_COMPLAINT(oracle_, "2 restarts were charged");
}

TEST_F(OutcomeOracleTest, NoRestartIsChargedBeforeTheFirstWorld) {
  Order(0, kGen1, 1);
  EXPECT_COMPLAINT(oracle_, "before the first world");
}

TEST_F(OutcomeOracleTest, WithAShorterLeaseAFaultIsSoonerForgotten) {
  EXPECT_EQ(ledger_.aftermath(), 7 * kSecond);
  EXPECT_EQ(FaultLedger(4 * kSecond).aftermath(), 5 * kSecond);
}

TEST_F(OutcomeOracleTest, ARestartIsChargedOnlyForAFaultThatCanHaveFailedTheWorld) {
  InjectedFault elsewhere = NodeFault(FaultKind::kPartition, kSecond, 5 * kSecond);
  elsewhere.node = 3;
  const Nanos over = 2 * kSecond;
  const Nanos stop = over + ledger_.aftermath();
  const struct {
    const char* what;
    InjectedFault fault;
    Nanos stopped_at;
    bool may_charge;
  } cases[] = {
      {"a node left", NodeFault(FaultKind::kMassLeave, kSecond, kSecond), over, false},
      {"another node", elsewhere, 6 * kSecond, false},
      {"in its aftermath", NodeFault(FaultKind::kPartition, kSecond, over), stop, true},
      {"long over", NodeFault(FaultKind::kPartition, kSecond, over), stop + kMilli, false},
  };
  for (const auto& c : cases) {
    FaultLedger ledger(6 * kSecond);
    OutcomeOracle oracle(ledger, {.min_nodes = 1, .max_restarts = 9});
    ledger.WorldOrdered(0, kGen1, 2);
    oracle.WorldOrdered(kGen1, 0, 2);
    ledger.Add(c.fault);
    ledger.StopOrdered(c.stopped_at, kGen1);
    ledger.WorldOrdered(c.stopped_at + kSecond, kGen2, 2);
    oracle.WorldOrdered(kGen2, 1, 2);
    EXPECT_EQ(oracle.complaint().find("nothing was injected") == std::string::npos, c.may_charge)
        << c.what << ": " << oracle.complaint();
  }
}

TEST_F(OutcomeOracleTest, AFaultThatBreaksTheWorldIsChargedUnlessTheStopCameBefore) {
  for (const Nanos stopped_at : {9 * kSecond, 11 * kSecond}) {
    FaultLedger ledger(6 * kSecond);
    OutcomeOracle oracle(ledger, {.min_nodes = 1, .max_restarts = 9});
    ledger.WorldOrdered(0, kGen1, 1);
    oracle.WorldOrdered(kGen1, 0, 2);
    ledger.StopOrdered(stopped_at, kGen1);
    ledger.Add(WorkerExitFault(11, 10 * kSecond, kGen1));
    ledger.WorldOrdered(12 * kSecond, kGen2, 1);
    oracle.WorldOrdered(kGen2, 0, 2);
    EXPECT_EQ(oracle.complaint().find("was not charged") != std::string::npos,
              stopped_at > 10 * kSecond)
        << oracle.complaint();
  }
}

TEST_F(OutcomeOracleTest, AWorldEndsWithoutChargeOnlyForAMembershipChange) {
  const struct {
    Nanos joined_at;
    Nanos partitioned_at;
    bool may_end;
  } cases[] = {{kSecond, kForever, false}, {8 * kSecond, kForever, true}, {0, kSecond, true}};
  for (const auto& c : cases) {
    FaultLedger ledger(6 * kSecond);
    OutcomeOracle oracle(ledger, {.min_nodes = 1, .max_restarts = 9});
    ledger.WorldOrdered(0, kGen1, 1);
    oracle.WorldOrdered(kGen1, 0, 2);
    ledger.MembershipChanged(c.joined_at);
    if (c.partitioned_at != kForever) {
      ledger.Add(NodeFault(FaultKind::kPartition, c.partitioned_at, 5 * kSecond));
    }
    ledger.StopOrdered(9 * kSecond, kGen1);
    ledger.WorldOrdered(10 * kSecond, kGen2, 1);
    oracle.WorldOrdered(kGen2, 0, 2);
    EXPECT_EQ(oracle.complaint().find("generation 1 was given up") == std::string::npos, c.may_end)
        << oracle.complaint();
  }
}

}  // namespace
}  // namespace fsdprun::sim
