// Each oracle is fed a history in which something is wrong and must complain of it, and the same
// history without the mistake, of which it must not.

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/sim/oracles/referee.h"

namespace fsdprun::sim {
namespace {

using ::testing::Test;

constexpr Generation kFirst{1};
constexpr Generation kSecondWorld{2};

InjectedFault ExitOf(int64_t pid, Nanos at, Generation g) {
  InjectedFault fault;
  fault.kind = FaultKind::kKillWorker;
  fault.at = at;
  fault.node = 1;
  fault.node_name = "node-1";
  fault.generation = fault.breaks = g;
  fault.pid = pid;
  fault.exit_code = 1;
  fault.tells_its_error = true;
  return fault;
}

InjectedFault Disturbance(FaultKind kind, Nanos at, Nanos until) {
  InjectedFault fault;
  fault.kind = kind;
  fault.at = at;
  fault.until = until;
  fault.node = 2;
  fault.node_name = "node-2";
  return fault;
}

Failure WorkerFailure(const std::string& node, int64_t pid, Generation g) {
  Failure failure;
  failure.generation = g;
  failure.node_name = node;
  failure.worker = WorkerExit{};
  failure.worker->pid = pid;
  failure.worker->exit_code = 1;
  return failure;
}

Failure LostNode(const std::string& node, Generation g) {
  Failure failure;
  failure.kind = CauseKind::kNodeLost;
  failure.generation = g;
  failure.node_name = node;
  return failure;
}

JobOutcome FailedWith(const Failure& root) {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.generation = root.generation;
  outcome.failure = FailureReport{root, {}, 0, 0};
  return outcome;
}

JobOutcome SucceededIn(Generation g) {
  JobOutcome outcome;
  outcome.generation = g;
  return outcome;
}

#define EXPECT_NO_COMPLAINT(oracle) EXPECT_EQ((oracle).complaint(), "")
#define EXPECT_COMPLAINT(oracle, part) \
  EXPECT_NE((oracle).complaint().find(part), std::string::npos) << (oracle).complaint()

// --- How the job ends

class OutcomeOracleTest : public Test {
 protected:
  void Order(Nanos at, Generation g, int restart_count) {
    for (const int node : {1, 2}) {
      ledger_.WorldOrdered(at, g, node);
    }
    oracle_.WorldOrdered(g, restart_count);
  }
  void Inject(const InjectedFault& fault) { ledger_.Add(fault); }
  void Decide(Nanos at, const JobOutcome& outcome, int world_size = 2) {
    ledger_.JobDecided(at);
    oracle_.Decided(at, outcome, world_size);
  }

  FaultLedger ledger_;
  OutcomeOracle oracle_{ledger_, {.min_nodes = 2, .max_restarts = 1, .join_timeout = 60 * kSecond}};
};

TEST_F(OutcomeOracleTest, SuccessNeedsTheWorkOfEveryRankOfTheLastWorld) {
  Order(0, kFirst, 0);
  oracle_.RankFinished(kFirst, 0);
  OutcomeOracle all = oracle_;
  all.RankFinished(kFirst, 1);
  all.Decided(kSecond, SucceededIn(kFirst), 2);
  EXPECT_NO_COMPLAINT(all);
  Decide(kSecond, SucceededIn(kFirst));
  EXPECT_COMPLAINT(oracle_, "only 1 of 2 ranks");
}

TEST_F(OutcomeOracleTest, WorkOfAnEarlierWorldDoesNotCount) {
  Order(0, kFirst, 0);
  oracle_.RankFinished(kFirst, 0);
  Inject(ExitOf(11, kSecond, kFirst));
  Order(2 * kSecond, kSecondWorld, 1);
  oracle_.RankFinished(kSecondWorld, 1);
  Decide(3 * kSecond, SucceededIn(kSecondWorld));
  EXPECT_COMPLAINT(oracle_, "only 1 of 2 ranks");
}

TEST_F(OutcomeOracleTest, AJobThatHangsOrIdlesMissesItsDeadline) {
  Order(0, kFirst, 0);
  OutcomeOracle lost = oracle_;
  lost.CoordinatorDied();
  lost.DeadlinePassed();
  EXPECT_NO_COMPLAINT(lost);
  oracle_.DeadlinePassed();
  EXPECT_COMPLAINT(oracle_, "has not done its work");
}

TEST_F(OutcomeOracleTest, AnOperatorsStopIsNotForgotten) {
  Order(0, kFirst, 0);
  oracle_.StopHeard();
  oracle_.DeadlinePassed();
  EXPECT_COMPLAINT(oracle_, "operator has stopped it");
}

TEST_F(OutcomeOracleTest, NoStopWithoutAnOperator) {
  Order(0, kFirst, 0);
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kStoppedBySignal;
  outcome.exit_code = 1;
  Decide(kSecond, outcome);
  EXPECT_COMPLAINT(oracle_, "a signal that nobody sent");
}

TEST_F(OutcomeOracleTest, AStoppedJobHasNotFailed) {
  Order(0, kFirst, 0);
  Inject(ExitOf(11, kSecond, kFirst));
  Order(2 * kSecond, kSecondWorld, 1);
  Inject(ExitOf(12, 3 * kSecond, kSecondWorld));
  oracle_.StopHeard();
  Decide(4 * kSecond, FailedWith(WorkerFailure("node-1", 12, kSecondWorld)));
  EXPECT_COMPLAINT(oracle_, "yet ended as a failure");
}

TEST_F(OutcomeOracleTest, TheExitCodeSaysHowTheJobEnded) {
  Order(0, kFirst, 0);
  oracle_.RankFinished(kFirst, 0);
  oracle_.RankFinished(kFirst, 1);
  JobOutcome outcome = SucceededIn(kFirst);
  outcome.exit_code = 1;
  Decide(kSecond, outcome);
  EXPECT_COMPLAINT(oracle_, "exit code 1");
}

TEST_F(OutcomeOracleTest, TheBudgetIsSpentBeforeTheJobGivesUp) {
  Order(0, kFirst, 0);
  Inject(ExitOf(11, kSecond, kFirst));
  OutcomeOracle early = oracle_;
  early.Decided(2 * kSecond, FailedWith(WorkerFailure("node-1", 11, kFirst)), 2);
  EXPECT_COMPLAINT(early, "gave up after 0 of 1 restarts");

  Order(2 * kSecond, kSecondWorld, 1);
  Inject(ExitOf(12, 3 * kSecond, kSecondWorld));
  Decide(4 * kSecond, FailedWith(WorkerFailure("node-1", 12, kSecondWorld)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OutcomeOracleTest, AConfigurationThatCannotWorkEndsTheJobAtOnce) {
  Order(0, kFirst, 0);
  InjectedFault fault = ExitOf(11, kSecond, kFirst);
  fault.kind = FaultKind::kConfigExit;
  Inject(fault);
  Decide(2 * kSecond, FailedWith(WorkerFailure("node-1", 11, kFirst)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OutcomeOracleTest, NothingIsChargedThatNobodyBroke) {
  Order(0, kFirst, 0);
  Inject(Disturbance(FaultKind::kMassLeave, kSecond, kSecond));
  Order(2 * kSecond, kSecondWorld, 1);
  EXPECT_COMPLAINT(oracle_, "nothing was injected");
}

TEST_F(OutcomeOracleTest, ADisturbanceMayBeChargedUntilItsAftermathIsOver) {
  const Nanos healed = 3 * kSecond;
  for (const Nanos stopped : {healed + kSecond, healed + FaultLedger::kAftermath + kSecond}) {
    FaultLedger ledger;
    OutcomeOracle oracle(ledger, {.min_nodes = 1, .max_restarts = 9});
    ledger.Add(Disturbance(FaultKind::kPartition, kSecond, healed));
    ledger.WorldOrdered(0, kFirst, 2);
    oracle.WorldOrdered(kFirst, 0);
    ledger.WorldOrdered(stopped, kSecondWorld, 2);
    oracle.WorldOrdered(kSecondWorld, 1);
    EXPECT_EQ(oracle.complaint().empty(), stopped == healed + kSecond) << stopped;
  }
}

TEST_F(OutcomeOracleTest, WhatIsBrokenForCertainIsCharged) {
  Order(0, kFirst, 0);
  Inject(ExitOf(11, 10 * kSecond, kFirst));
  ledger_.StopOrdered(11 * kSecond, kFirst);
  Order(12 * kSecond, kSecondWorld, 0);
  EXPECT_COMPLAINT(oracle_, "was not charged");
}

TEST_F(OutcomeOracleTest, AFaultDuringAStopNeedNotBeCharged) {
  Order(0, kFirst, 0);
  ledger_.StopOrdered(9 * kSecond, kFirst);
  Inject(ExitOf(11, 10 * kSecond, kFirst));
  Order(12 * kSecond, kSecondWorld, 0);
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OutcomeOracleTest, AHealthyWorldIsNotGivenUp) {
  Order(0, kFirst, 0);
  ledger_.MembershipChanged(kSecond);
  ledger_.StopOrdered(9 * kSecond, kFirst);
  Order(10 * kSecond, kSecondWorld, 0);
  EXPECT_COMPLAINT(oracle_, "generation 1 was given up");
}

TEST_F(OutcomeOracleTest, AWorldMayBeGivenUpForANodeThatComesOrIsLost) {
  Order(0, kFirst, 0);
  ledger_.MembershipChanged(8 * kSecond);
  ledger_.StopOrdered(9 * kSecond, kFirst);
  Order(10 * kSecond, kSecondWorld, 0);
  EXPECT_NO_COMPLAINT(oracle_);

  FaultLedger ledger;
  OutcomeOracle found(ledger, {.min_nodes = 1, .max_restarts = 9});
  ledger.WorldOrdered(0, kFirst, 1);
  found.WorldOrdered(kFirst, 0);
  ledger.Add(Disturbance(FaultKind::kPartition, kSecond, 5 * kSecond));
  ledger.StopOrdered(9 * kSecond, kFirst);
  ledger.WorldOrdered(10 * kSecond, kSecondWorld, 1);
  found.WorldOrdered(kSecondWorld, 0);
  EXPECT_NO_COMPLAINT(found);
}

TEST_F(OutcomeOracleTest, ADisturbanceOfANodeOutsideTheWorldCostsNoRestart) {
  Order(0, kFirst, 0);
  InjectedFault elsewhere = Disturbance(FaultKind::kPartition, kSecond, 5 * kSecond);
  elsewhere.node = 3;
  Inject(elsewhere);
  Order(6 * kSecond, kSecondWorld, 1);
  EXPECT_COMPLAINT(oracle_, "nothing was injected");
}

TEST_F(OutcomeOracleTest, AFaultThatWasOverBeforeTheStopCostsNoRestart) {
  Order(0, kFirst, 0);
  Inject(Disturbance(FaultKind::kPartition, kSecond, 2 * kSecond));
  ledger_.StopOrdered(30 * kSecond, kFirst);
  Order(31 * kSecond, kSecondWorld, 1);
  EXPECT_COMPLAINT(oracle_, "nothing was injected");
}

TEST_F(OutcomeOracleTest, OneWorldCostsAtMostOneRestart) {
  Order(0, kFirst, 0);
  Inject(ExitOf(11, kSecond, kFirst));
  Order(2 * kSecond, kSecondWorld, 2);
  EXPECT_COMPLAINT(oracle_, "2 restarts were charged");
}

TEST_F(OutcomeOracleTest, WantOfNodesMustHaveLasted) {
  Failure nobody;
  nobody.kind = CauseKind::kJoinTimeout;
  oracle_.NodeArrived(0);
  oracle_.NodeArrived(1);
  OutcomeOracle enough = oracle_;
  enough.Decided(90 * kSecond, FailedWith(nobody), 0);
  EXPECT_COMPLAINT(enough, "of which there were enough");

  oracle_.NodeGone(10 * kSecond, 1);
  OutcomeOracle impatient = oracle_;
  impatient.Decided(40 * kSecond, FailedWith(nobody), 0);
  EXPECT_COMPLAINT(impatient, "of which there were enough");
  Decide(71 * kSecond, FailedWith(nobody), 0);
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OutcomeOracleTest, AgentsThatAskForOneRankAreOneNode) {
  Failure nobody;
  nobody.kind = CauseKind::kJoinTimeout;
  oracle_.NodeArrived(0);
  oracle_.NodeArrived(0);
  Decide(71 * kSecond, FailedWith(nobody), 0);
  EXPECT_NO_COMPLAINT(oracle_);
}

// --- Who is blamed

class CauseOracleTest : public Test {
 protected:
  CauseOracleTest() {
    for (const int node : {1, 2}) {
      ledger_.WorldOrdered(0, kFirst, node);
    }
  }
  void Hear(int64_t pid, bool after_stop = false) {
    WorkerExit exit;
    exit.pid = pid;
    exit.exit_code = 1;
    exit.after_stop = after_stop;
    oracle_.ExitHeard(exit);
  }

  FaultLedger ledger_;
  CauseOracle oracle_{ledger_, 20 * kSecond};
};

TEST_F(CauseOracleTest, TheCulpritMayBeNamed) {
  ledger_.Add(ExitOf(11, kSecond, kFirst));
  oracle_.Decided(FailedWith(WorkerFailure("node-1", 11, kFirst)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(CauseOracleTest, AVictimMustNotBeNamedIfTheCulpritWasHeard) {
  ledger_.AddVictim(21, ledger_.Add(ExitOf(11, kSecond, kFirst)));
  CauseOracle unheard = oracle_;
  unheard.Decided(FailedWith(WorkerFailure("node-2", 21, kFirst)));
  EXPECT_NO_COMPLAINT(unheard);
  Hear(11);
  oracle_.Decided(FailedWith(WorkerFailure("node-2", 21, kFirst)));
  EXPECT_COMPLAINT(oracle_, "is a victim");
}

TEST_F(CauseOracleTest, AnExitAfterTheStopTellsNothingOfTheCulprit) {
  ledger_.AddVictim(21, ledger_.Add(ExitOf(11, kSecond, kFirst)));
  Hear(11, true);
  oracle_.Decided(FailedWith(WorkerFailure("node-2", 21, kFirst)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(CauseOracleTest, WithoutAWordTheOrderTellsCulpritAndVictimApart) {
  InjectedFault silent = ExitOf(11, kSecond, kFirst);
  silent.tells_its_error = false;
  ledger_.AddVictim(21, ledger_.Add(silent));
  CauseOracle culprit_first = oracle_;
  Hear(21);
  Hear(11);
  oracle_.Decided(FailedWith(WorkerFailure("node-2", 21, kFirst)));
  EXPECT_NO_COMPLAINT(oracle_);

  for (const int64_t pid : {11, 21}) {
    WorkerExit exit;
    exit.pid = pid;
    exit.exit_code = 1;
    culprit_first.ExitHeard(exit);
  }
  culprit_first.Decided(FailedWith(WorkerFailure("node-2", 21, kFirst)));
  EXPECT_COMPLAINT(culprit_first, "is a victim");
}

TEST_F(CauseOracleTest, AHardDeathIsNamedWheneverItIsHeard) {
  InjectedFault killed = ExitOf(11, kSecond, kFirst);
  killed.signal = SIGKILL;
  killed.tells_its_error = false;
  ledger_.AddVictim(21, ledger_.Add(killed));
  Hear(21);
  Hear(11);
  oracle_.Decided(FailedWith(WorkerFailure("node-2", 21, kFirst)));
  EXPECT_COMPLAINT(oracle_, "is a victim");
}

TEST_F(CauseOracleTest, AHungPreparationExcusesNobodyForever) {
  InjectedFault hung = Disturbance(FaultKind::kHangPrepare, kSecond, kSecond);
  hung.generation = kFirst;
  ledger_.Add(hung);
  oracle_.GivenUp(21 * kSecond, 2, "stuck");
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.GivenUp(22 * kSecond, 2, "stuck");
  EXPECT_COMPLAINT(oracle_, "was given up");
}

TEST_F(CauseOracleTest, AVictimOfADeadKeeperMustNotBeNamedIfItsNodeHasTold) {
  InjectedFault fault = ExitOf(0, kSecond, kFirst);
  fault.kind = FaultKind::kKillKeeper;
  ledger_.AddVictim(21, ledger_.Add(fault));
  oracle_.NodeFaultHeard("node-1", kFirst);
  oracle_.Decided(FailedWith(WorkerFailure("node-2", 21, kFirst)));
  EXPECT_COMPLAINT(oracle_, "is a victim");
}

TEST_F(CauseOracleTest, WhoWasNotTouchedMustNotBeNamed) {
  ledger_.Add(ExitOf(11, kSecond, kFirst));
  oracle_.Decided(FailedWith(WorkerFailure("node-3", 31, kFirst)));
  EXPECT_COMPLAINT(oracle_, "is no injected fault");
}

TEST_F(CauseOracleTest, AFaultOfAnEarlierWorldIsNotTheCause) {
  ledger_.Add(ExitOf(11, kSecond, kFirst));
  oracle_.Decided(FailedWith(WorkerFailure("node-1", 11, kSecondWorld)));
  EXPECT_COMPLAINT(oracle_, "is no injected fault");
}

TEST_F(CauseOracleTest, TheReportGivesTheEndAsItWas) {
  ledger_.Add(ExitOf(11, kSecond, kFirst));
  Failure root = WorkerFailure("node-1", 11, kFirst);
  root.worker->exit_code = 0;
  root.worker->signal = SIGKILL;
  oracle_.Decided(FailedWith(root));
  EXPECT_COMPLAINT(oracle_, "is no injected fault");
}

TEST_F(CauseOracleTest, OnlyADisturbedNodeIsLost) {
  ledger_.Add(Disturbance(FaultKind::kPartition, kSecond, 5 * kSecond));
  ledger_.JobDecided(6 * kSecond);
  CauseOracle wrong = oracle_;
  wrong.Decided(FailedWith(LostNode("node-7", kFirst)));
  EXPECT_COMPLAINT(wrong, "is no injected fault");
  oracle_.Decided(FailedWith(LostNode("node-2", kFirst)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(CauseOracleTest, WhatHappensAfterTheStopIsNotItsCause) {
  ledger_.Add(ExitOf(11, kSecond, kFirst));
  ledger_.StopOrdered(2 * kSecond, kFirst);
  InjectedFault late = ExitOf(12, 4 * kSecond, kFirst);
  ledger_.Add(late);
  CauseOracle plain = oracle_;
  plain.Decided(FailedWith(WorkerFailure("node-1", 12, kFirst)));
  EXPECT_COMPLAINT(plain, "is no injected fault");

  late.pid = 13;
  late.exit_code = 0;
  late.signal = SIGKILL;
  ledger_.Add(late);
  Failure killed = WorkerFailure("node-1", 13, kFirst);
  killed.worker->exit_code = 0;
  killed.worker->signal = SIGKILL;
  oracle_.Decided(FailedWith(killed));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(CauseOracleTest, AnAgentGivesUpOnlyIfItWasDisturbedOrTold) {
  CauseOracle told = oracle_;
  told.ToldToGo(2);
  told.AgentExited(kSecond, 2, 1);
  EXPECT_NO_COMPLAINT(told);
  told.AgentStarted(2);
  told.AgentExited(2 * kSecond, 2, 1);
  EXPECT_COMPLAINT(told, "exits with 1 although");
  ledger_.Add(Disturbance(FaultKind::kPartition, kSecond, 2 * kSecond));
  oracle_.AgentExited(5 * kSecond, 2, 1);
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(CauseOracleTest, OnlyAStuckOrDisturbedNodeIsGivenUp) {
  ledger_.Add(Disturbance(FaultKind::kPauseAgent, kSecond, 2 * kSecond));
  oracle_.GivenUp(5 * kSecond, 2, "stuck");
  EXPECT_NO_COMPLAINT(oracle_);
  CauseOracle late = oracle_;
  late.GivenUp(60 * kSecond, 2, "stuck");
  EXPECT_COMPLAINT(late, "was given up");
  oracle_.GivenUp(5 * kSecond, 3, "stuck");
  EXPECT_COMPLAINT(oracle_, "was given up");
}

// --- What may overlap

class OverlapOracleTest : public Test {
 protected:
  static constexpr Nanos kAlone = 8 * kSecond;

  OverlapOracleTest() {
    for (const int node : {1, 2}) {
      hearing_.StreamOpened(0, node);
    }
  }
  /// An old world on nodes 1 and 2; the new one then starts on node 1.
  void RunOldWorld() {
    oracle_.ProcessStarted(kSecond, {11, 1, 1, kFirst});
    oracle_.ProcessStarted(kSecond, {21, 2, 2, kFirst});
    oracle_.ProcessEnded(2 * kSecond, 11);
  }
  void StartNewWorld(Nanos at) { oracle_.ProcessStarted(at, {12, 1, 1, kSecondWorld}); }
  void CutOff(Nanos at, Nanos until) {
    oracle_.HearingChanges(at, 2);
    hearing_.CutOff(at, 2, until);
  }

  Hearing hearing_;
  OverlapOracle oracle_{hearing_, kAlone};
};

TEST_F(OverlapOracleTest, WorldsThatFollowEachOtherAreFine) {
  RunOldWorld();
  oracle_.ProcessEnded(3 * kSecond, 21);
  StartNewWorld(4 * kSecond);
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OverlapOracleTest, ANodeThatHearsMustHaveLetGo) {
  RunOldWorld();
  StartNewWorld(4 * kSecond);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, ANodeThatIsCutOffMayRunOn) {
  RunOldWorld();
  CutOff(3 * kSecond, 9 * kSecond);
  StartNewWorld(7 * kSecond);
  oracle_.ProcessEnded(10 * kSecond, 21);
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OverlapOracleTest, AfterItHearsAgainItLetsGoInTime) {
  RunOldWorld();
  CutOff(3 * kSecond, 9 * kSecond);
  StartNewWorld(7 * kSecond);
  oracle_.ProcessEnded(9 * kSecond + OverlapOracle::kLetGoWithin + kMilli, 21);
  EXPECT_COMPLAINT(oracle_, "could have ended it 1 ms ago");
}

TEST_F(OverlapOracleTest, ANewCutDoesNotExcuseWhatWasMissedBefore) {
  RunOldWorld();
  CutOff(3 * kSecond, 9 * kSecond);
  StartNewWorld(7 * kSecond);
  CutOff(15 * kSecond, 30 * kSecond);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, AStoppedNodeAndAStoppedCoordinatorAreExcuses) {
  RunOldWorld();
  oracle_.HearingChanges(3 * kSecond, 2);
  hearing_.Pause(3 * kSecond, 2, 9 * kSecond);
  StartNewWorld(7 * kSecond);
  oracle_.HearingChangesEverywhere(8 * kSecond);
  hearing_.PauseCoordinator(8 * kSecond, 14 * kSecond);
  oracle_.ProcessEnded(15 * kSecond, 21);
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OverlapOracleTest, ANodeThatCannotHearEndsItsWorkersByItself) {
  const Nanos bound = 3 * kSecond + kAlone + OverlapOracle::kLetGoWithin;
  for (const Nanos ended : {bound, bound + kMilli}) {
    Hearing hearing;
    hearing.StreamOpened(0, 2);
    OverlapOracle oracle(hearing, kAlone);
    oracle.ProcessStarted(kSecond, {21, 2, 2, kFirst});
    hearing.CutOff(3 * kSecond, 2, 90 * kSecond);
    hearing.StreamClosed(6 * kSecond, 2);
    oracle.ProcessStarted(7 * kSecond, {12, 1, 1, kSecondWorld});
    oracle.ProcessEnded(ended, 21);
    EXPECT_EQ(oracle.complaint().empty(), ended == bound) << ended;
  }
}

TEST_F(OverlapOracleTest, TimeInWhichANodeIsStoppedDoesNotCount) {
  const Nanos bound = 60 * kSecond + kAlone + OverlapOracle::kLetGoWithin;
  for (const Nanos ended : {bound, bound + kMilli}) {
    Hearing hearing;
    hearing.StreamOpened(0, 2);
    OverlapOracle oracle(hearing, kAlone);
    oracle.ProcessStarted(kSecond, {21, 2, 2, kFirst});
    hearing.Pause(3 * kSecond, 2, 60 * kSecond);
    hearing.StreamClosed(6 * kSecond, 2);
    oracle.ProcessStarted(30 * kSecond, {12, 1, 1, kSecondWorld});
    oracle.ProcessEnded(ended, 21);
    EXPECT_EQ(oracle.complaint().empty(), ended == bound) << ended;
  }
}

TEST_F(OverlapOracleTest, NothingOfAnOldGenerationIsStartedLate) {
  oracle_.ProcessStarted(kSecond, {12, 1, 1, kSecondWorld});
  oracle_.ProcessStarted(2 * kSecond + OverlapOracle::kLetGoWithin, {21, 2, 2, kFirst});
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, OrphansEndSoon) {
  RunOldWorld();
  oracle_.AgentDied(3 * kSecond, 2);
  hearing_.StreamClosed(3 * kSecond, 2);
  StartNewWorld(3 * kSecond + 50 * kMilli);
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.ProcessEnded(4 * kSecond, 21);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, WhatCannotDieMayStayUntilItCan) {
  RunOldWorld();
  oracle_.BecameUnkillable(21);
  StartNewWorld(4 * kSecond);
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.BecameKillable(21);
  oracle_.ProcessEnded(20 * kSecond, 21);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, OneNodeNeverRunsTwoGenerations) {
  oracle_.ProcessStarted(kSecond, {21, 2, 2, kFirst});
  CutOff(2 * kSecond, 9 * kSecond);
  oracle_.ProcessStarted(3 * kSecond, {22, 2, 2, kSecondWorld});
  EXPECT_COMPLAINT(oracle_, "was started beside");
}

TEST_F(OverlapOracleTest, OnlyALaterAgentMayWorkBesideWhatCannotDie) {
  oracle_.ProcessStarted(kSecond, {21, 2, 2, kFirst});
  oracle_.BecameUnkillable(21);
  OverlapOracle same_agent = oracle_;
  oracle_.ProcessStarted(3 * kSecond, {22, 2, 7, kSecondWorld});
  EXPECT_NO_COMPLAINT(oracle_);
  same_agent.ProcessStarted(3 * kSecond, {22, 2, 2, kSecondWorld});
  EXPECT_COMPLAINT(same_agent, "was started beside");
}

TEST_F(OverlapOracleTest, NothingRunsOnAfterTheJob) {
  RunOldWorld();
  oracle_.JobEnded(5 * kSecond);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

// --- What is fenced

TEST(FenceOracleTest, AnOldReportChangesNothing) {
  FenceOracle oracle;
  oracle.ReportReceived(kFirst, kSecondWorld, false);
  oracle.ReportReceived(kSecondWorld, kSecondWorld, true);
  EXPECT_NO_COMPLAINT(oracle);
  oracle.ReportReceived(kFirst, kSecondWorld, true);
  EXPECT_COMPLAINT(oracle, "a report about generation 1");
}

TEST(FenceOracleTest, AnOldOrderTouchesNoProcess) {
  FenceOracle oracle;
  oracle.OrderReceived(kFirst, kSecondWorld, false);
  oracle.OrderReceived(kSecondWorld, kSecondWorld, true);
  oracle.OrderReceived(Generation{}, kSecondWorld, true);
  EXPECT_NO_COMPLAINT(oracle);
  oracle.OrderReceived(kFirst, kSecondWorld, true);
  EXPECT_COMPLAINT(oracle, "an order about generation 1");
}

TEST(FenceOracleTest, EveryWorldHasItsOwnStore) {
  FenceOracle oracle;
  oracle.StoreMade(kFirst, 20001);
  oracle.StoreMade(kSecondWorld, 20002);
  oracle.StoreUsed(kSecondWorld, 20002);
  EXPECT_NO_COMPLAINT(oracle);
  FenceOracle nobody = oracle;
  nobody.StoreUsed(kSecondWorld, 20003);
  EXPECT_COMPLAINT(nobody, "a store of nobody");
  oracle.StoreUsed(kSecondWorld, 20001);
  EXPECT_COMPLAINT(oracle, "a store of generation 1");
}

// --- The end of the coordinator

class ShutdownOracleTest : public Test {
 protected:
  ShutdownOracleTest() { hearing_.StreamOpened(0, 1); }

  Hearing hearing_;
  ShutdownOracle oracle_{hearing_, kSecond};
};

TEST_F(ShutdownOracleTest, WorkersAndAgentsEndWithinTheBound) {
  oracle_.ProcessEnded(50 * kSecond, 1);
  oracle_.CoordinatorDied(60 * kSecond);
  oracle_.ProcessEnded(61 * kSecond, 1);
  oracle_.AgentExited(61 * kSecond, 1, 1);
  EXPECT_NO_COMPLAINT(oracle_);
  ShutdownOracle worker = oracle_;
  worker.ProcessEnded(61 * kSecond + kMilli, 1);
  EXPECT_COMPLAINT(worker, "a worker of node 1 outlived");
  oracle_.AgentExited(61 * kSecond + kMilli, 1, 1);
  EXPECT_COMPLAINT(oracle_, "the agent of node 1 outlived");
}

TEST_F(ShutdownOracleTest, AStoppedNodeEndsWithinTheBoundAfterwards) {
  hearing_.Pause(55 * kSecond, 1, 70 * kSecond);
  oracle_.CoordinatorDied(60 * kSecond);
  oracle_.ProcessEnded(71 * kSecond, 1);
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.ProcessEnded(72 * kSecond, 1);
  EXPECT_COMPLAINT(oracle_, "a worker of node 1 outlived");
}

TEST_F(ShutdownOracleTest, NobodyClaimsSuccessForALostJob) {
  oracle_.CoordinatorDied(60 * kSecond);
  ShutdownOracle decided = oracle_;
  decided.Decided();
  decided.AgentExited(61 * kSecond, 1, 0);
  EXPECT_NO_COMPLAINT(decided);
  oracle_.AgentExited(61 * kSecond, 1, 0);
  EXPECT_COMPLAINT(oracle_, "exits with 0");
}

// --- All together

TEST(RefereeTest, AComplaintOfAnyOracleIsHeard) {
  const OutcomeOracle::Job job{.min_nodes = 1, .max_restarts = 0, .join_timeout = kSecond};
  const Referee::Bounds bounds{.alone = kSecond, .ended = kSecond, .stuck = kSecond};
  Referee overlap(job, bounds);
  overlap.StreamOpened(0, 1);
  overlap.StreamOpened(0, 2);
  overlap.ProcessStarted(kSecond, {21, 2, 2, kFirst});
  overlap.ProcessStarted(9 * kSecond, {12, 1, 1, kSecondWorld});
  EXPECT_COMPLAINT(overlap, "overlaps a newer world");

  Referee fence(job, bounds);
  fence.fence().ReportReceived(kFirst, kSecondWorld, true);
  EXPECT_COMPLAINT(fence, "a report about generation 1");

  Referee outcome(job, bounds);
  outcome.DeadlinePassed();
  EXPECT_COMPLAINT(outcome, "has not done its work");

  Referee cause(job, bounds);
  cause.GivenUp(kSecond, 1, "stuck");
  EXPECT_COMPLAINT(cause, "was given up");

  Referee shutdown(job, bounds);
  shutdown.CoordinatorDied(kSecond);
  shutdown.ProcessEnded(9 * kSecond, 21, 1);
  EXPECT_COMPLAINT(shutdown, "outlived the coordinator");
}

TEST(RefereeTest, OrdersTellOfWorldsAndStops) {
  Referee referee({.min_nodes = 1, .max_restarts = 0, .join_timeout = kSecond},
                  {.alone = kSecond, .ended = kSecond, .stuck = kSecond});
  RankAssignment assignment;
  assignment.generation = kFirst;
  assignment.world_size = 1;
  referee.OrderSent(0, 1, {Incarnation(7), kFirst, PrepareGeneration{assignment}});
  referee.RankFinished(kFirst, 0);
  referee.OrderSent(kSecond, 1, {Incarnation(7), kFirst, StopWorkers{SIGTERM, Duration{}, "why"}});
  referee.ledger().Add(ExitOf(11, 2 * kSecond, kFirst));
  EXPECT_EQ(referee.ledger().MustHaveFailed(kFirst), nullptr) << "the stop came before";
  referee.Decided(3 * kSecond, SucceededIn(kFirst));
  EXPECT_NO_COMPLAINT(referee);
}

}  // namespace
}  // namespace fsdprun::sim
