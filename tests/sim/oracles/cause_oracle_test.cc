#include "tests/sim/oracles/cause_oracle.h"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr int64_t kCulprit = 11;
constexpr int64_t kVictim = 21;

class CauseOracleTest : public ::testing::Test {
 protected:
  CauseOracleTest() {
    for (const int node : {1, 2}) {
      ledger_.WorldOrdered(0, kGen1, node);
    }
  }
  static void Hear(CauseOracle& oracle, int64_t pid, bool after_stop = false,
                   Nanos failed_at = kSecond) {
    WorkerExit exit;
    exit.pid = pid;
    exit.exit_code = 1;
    exit.after_stop = after_stop;
    oracle.ExitHeard(exit, failed_at);
  }
  static JobOutcome VictimNamed() { return FailedWith(WorkerFailure("node-2", kVictim, kGen1)); }

  FaultLedger ledger_{6 * kSecond};
  CauseOracle oracle_{ledger_, 20 * kSecond};
};

// --- The root cause is an injected fault

TEST_F(CauseOracleTest, TheRootCauseIsAnInjectedFaultOfThatGeneration) {
  ledger_.Add(WorkerExitFault(kCulprit, kSecond, kGen1));
  const Failure root = WorkerFailure("node-1", kCulprit, kGen1);
  Failure other_signal = root;
  other_signal.worker->exit_code = 0;
  other_signal.worker->signal = SIGKILL;
  const struct {
    const char* what;
    Failure root;
    bool is_right;
  } cases[] = {
      {"as injected", root, true},
      {"untouched node", WorkerFailure("node-3", 31, kGen1), false},
      {"other generation", WorkerFailure("node-1", kCulprit, kGen2), false},
      {"other signal", other_signal, false},
  };
  for (const auto& c : cases) {
    CauseOracle oracle = oracle_;
    oracle.Decided(FailedWith(c.root));
    EXPECT_EQ(oracle.complaint().find("is no injected fault") == std::string::npos, c.is_right)
        << c.what << ": " << oracle.complaint();
  }
}

TEST_F(CauseOracleTest, OnlyADisturbedNodeIsLost) {
  ledger_.Add(NodeFault(FaultKind::kPartition, kSecond, 5 * kSecond));
  ledger_.JobDecided(6 * kSecond);
  CauseOracle wrong = oracle_;
  wrong.Decided(FailedWith(NodeLoss("node-7", kGen1)));
  EXPECT_COMPLAINT(wrong, "is no injected fault");
  oracle_.Decided(FailedWith(NodeLoss("node-2", kGen1)));
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(CauseOracleTest, AnExitAfterTheStopIsTheRootCauseOnlyIfTheStopCannotHaveCausedIt) {
  ledger_.Add(WorkerExitFault(kCulprit, kSecond, kGen1));
  ledger_.StopOrdered(2 * kSecond, kGen1);
  ledger_.WorkersTold(2 * kSecond, kGen1, 1);
  const struct {
    FaultKind kind;
    int exit_code;
    int signal;
    bool may_be_root;
  } cases[] = {
      {FaultKind::kKillWorker, 1, 0, false},      {FaultKind::kKillWorker, 0, SIGSEGV, false},
      {FaultKind::kKillWorker, 0, SIGKILL, true}, {FaultKind::kKillWorker, 0, SIGBUS, true},
      {FaultKind::kConfigExit, 78, 0, true},
  };
  int64_t pid = kCulprit;
  for (const auto& c : cases) {
    InjectedFault late = WorkerExitFault(++pid, 4 * kSecond, kGen1);
    late.kind = c.kind;
    late.exit_code = c.exit_code;
    late.signal = c.signal;
    ledger_.Add(late);
    Failure root = WorkerFailure("node-1", pid, kGen1);
    root.worker->exit_code = c.exit_code;
    root.worker->signal = c.signal;
    CauseOracle oracle = oracle_;
    oracle.Decided(FailedWith(root));
    EXPECT_EQ(oracle.complaint().empty(), c.may_be_root)
        << "exit code " << c.exit_code << ", signal " << c.signal << ": " << oracle.complaint();
  }
}

TEST_F(CauseOracleTest, AnExitIsNoConsequenceOfAStopThatHasNotReachedItsNode) {
  ledger_.Add(WorkerExitFault(kCulprit, kSecond, kGen1));
  ledger_.StopOrdered(2 * kSecond, kGen1);
  ledger_.WorkersTold(2 * kSecond, kGen1, 2);
  ledger_.Add(WorkerExitFault(12, 8 * kSecond, kGen1));
  CauseOracle never_told = oracle_;
  never_told.Decided(FailedWith(WorkerFailure("node-1", 12, kGen1)));
  EXPECT_NO_COMPLAINT(never_told);
  ledger_.WorkersTold(8 * kSecond, kGen1, 1);
  ledger_.WorkersTold(10 * kSecond, kGen1, 1);
  CauseOracle before = oracle_;
  before.Decided(FailedWith(WorkerFailure("node-1", 12, kGen1)));
  EXPECT_NO_COMPLAINT(before);
  ledger_.Add(WorkerExitFault(13, 9 * kSecond, kGen1));
  oracle_.Decided(FailedWith(WorkerFailure("node-1", 13, kGen1)));
  EXPECT_COMPLAINT(oracle_, "is no injected fault");
}

// --- A victim is the root cause only if nothing tells it from the culprit

TEST_F(CauseOracleTest, AVictimIsNotNamedIfTheCulpritWasHeard) {
  ledger_.AddVictim(kVictim, ledger_.Add(WorkerExitFault(kCulprit, kSecond, kGen1)));
  CauseOracle unheard = oracle_;
  unheard.Decided(VictimNamed());
  EXPECT_NO_COMPLAINT(unheard);
  CauseOracle after_stop = oracle_;
  Hear(after_stop, kCulprit, true);
  after_stop.Decided(VictimNamed());
  EXPECT_NO_COMPLAINT(after_stop);
  Hear(oracle_, kCulprit);
  oracle_.Decided(VictimNamed());
  EXPECT_COMPLAINT(oracle_, "is a victim");
}

TEST_F(CauseOracleTest, WithoutAnErrorMessageWhoSeemsToHaveFailedFirstMayBeNamed) {
  InjectedFault without_message = WorkerExitFault(kCulprit, kSecond, kGen1);
  without_message.tells_its_error = false;
  ledger_.AddVictim(kVictim, ledger_.Add(without_message));
  for (const bool is_culprit_heard_first : {false, true}) {
    for (const Nanos victim_failed_at : {kSecond - 1, kSecond, kSecond + 1}) {
      CauseOracle oracle = oracle_;
      if (is_culprit_heard_first) {
        Hear(oracle, kCulprit);
      }
      Hear(oracle, kVictim, false, victim_failed_at);
      if (!is_culprit_heard_first) {
        Hear(oracle, kCulprit);
      }
      oracle.Decided(VictimNamed());
      const bool seems_first =
          victim_failed_at < kSecond || (victim_failed_at == kSecond && !is_culprit_heard_first);
      EXPECT_EQ(oracle.complaint().empty(), seems_first) << oracle.complaint();
    }
  }
}

TEST_F(CauseOracleTest, AKilledCulpritIsNamedInWhateverOrderItIsHeard) {
  InjectedFault killed = WorkerExitFault(kCulprit, kSecond, kGen1);
  killed.signal = SIGKILL;
  killed.tells_its_error = false;
  ledger_.AddVictim(kVictim, ledger_.Add(killed));
  Hear(oracle_, kVictim);
  Hear(oracle_, kCulprit);
  oracle_.Decided(VictimNamed());
  EXPECT_COMPLAINT(oracle_, "is a victim");
}

TEST_F(CauseOracleTest, AVictimOfADeadKeeperIsNotNamedIfTheNodeReportedIt) {
  InjectedFault fault = WorkerExitFault(0, kSecond, kGen1);
  fault.kind = FaultKind::kKillKeeper;
  ledger_.AddVictim(kVictim, ledger_.Add(fault));
  CauseOracle unheard = oracle_;
  unheard.Decided(VictimNamed());
  EXPECT_NO_COMPLAINT(unheard);
  oracle_.NodeFaultHeard("node-1", kGen1);
  oracle_.Decided(VictimNamed());
  EXPECT_COMPLAINT(oracle_, "is a victim");
}

// --- Nodes and agents that give up

TEST_F(CauseOracleTest, OnlyAStuckOrDisturbedNodeIsGivenUp) {
  ledger_.Add(NodeFault(FaultKind::kPauseAgent, kSecond, 2 * kSecond));
  oracle_.GivenUp(5 * kSecond, 2, "stuck");
  EXPECT_NO_COMPLAINT(oracle_);
  CauseOracle late = oracle_;
  late.GivenUp(60 * kSecond, 2, "stuck");
  EXPECT_COMPLAINT(late, "was given up");
  oracle_.GivenUp(5 * kSecond, 3, "stuck");
  EXPECT_COMPLAINT(oracle_, "was given up");
}

TEST_F(CauseOracleTest, AHungPreparationExplainsAStuckNodeForABoundedTime) {
  InjectedFault hung = NodeFault(FaultKind::kHangPrepare, kSecond, kSecond);
  hung.generation = kGen1;
  ledger_.Add(hung);
  oracle_.GivenUp(21 * kSecond, 2, "stuck");
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.GivenUp(22 * kSecond, 2, "stuck");
  EXPECT_COMPLAINT(oracle_, "was given up");
}

TEST_F(CauseOracleTest, AnAgentExitsWithAnErrorOnlyIfDisturbedOrTold) {
  CauseOracle told = oracle_;
  told.ToldToGo(2);
  told.AgentExited(kSecond, 2, 1);
  EXPECT_NO_COMPLAINT(told);
  told.AgentStarted(2);
  told.AgentExited(2 * kSecond, 2, 1);
  EXPECT_COMPLAINT(told, "exits with 1 although");
  ledger_.Add(NodeFault(FaultKind::kPartition, kSecond, 2 * kSecond));
  oracle_.AgentExited(5 * kSecond, 2, 1);
  EXPECT_NO_COMPLAINT(oracle_);
}

}  // namespace
}  // namespace fsdprun::sim
