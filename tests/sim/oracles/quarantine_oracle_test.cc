#include "tests/sim/oracles/quarantine_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr Nanos kWindow = 60 * kSecond;
constexpr Nanos kLease = 3 * kSecond;

class QuarantineOracleTest : public ::testing::Test {
 protected:
  /// Two faults hit node 2, one at 10 s, one at `second`; and some others node 1.
  void Fail(Nanos second) {
    ledger_.Add(NodeFault(FaultKind::kKillAgent, 10 * kSecond, 10 * kSecond));
    ledger_.Add(NodeFault(FaultKind::kKillWorker, second, second));
    for (const Nanos at : {11 * kSecond, 12 * kSecond, 13 * kSecond}) {
      ledger_.Add(WorkerExitFault(7, at, kGen1));
    }
  }

  FaultLedger ledger_{kLease};
  QuarantineOracle oracle_{ledger_, 3, kWindow};
};

TEST_F(QuarantineOracleTest, NodeThatDidNotFailAsOftenIsNotLeftOut) {
  Fail(20 * kSecond);
  QuarantineOracle asks_for_more(ledger_, 4, kWindow);
  asks_for_more.LeftOut(21 * kSecond, 2, true);
  EXPECT_COMPLAINT(asks_for_more, "node 2 is left out after 2 faults, and 4 are asked for");
  oracle_.LeftOut(21 * kSecond, 2, true);
  EXPECT_NO_COMPLAINT(oracle_);
  EXPECT_EQ(oracle_.questions(), 1);
}

TEST_F(QuarantineOracleTest, FaultsOfLongAgoDoNotCount) {
  Fail(20 * kSecond);
  QuarantineOracle late = oracle_;
  const Nanos latest = 10 * kSecond + kWindow + ledger_.aftermath();
  oracle_.LeftOut(latest, 2, true);
  EXPECT_NO_COMPLAINT(oracle_);
  late.LeftOut(latest + 1, 2, true);
  EXPECT_COMPLAINT(late, "after 1 faults");
}

TEST_F(QuarantineOracleTest, NobodyIsLeftOutWhereNobodyMayBe) {
  Fail(20 * kSecond);
  QuarantineOracle never(ledger_, 0, kWindow);
  never.LeftOut(21 * kSecond, 2, true);
  EXPECT_COMPLAINT(never, "0 are asked for");
}

TEST_F(QuarantineOracleTest, WhoIsToldAgainIsNoQuestion) {
  Fail(20 * kSecond);
  oracle_.LeftOut(21 * kSecond, 2, true);
  oracle_.Admitted(2);
  oracle_.LeftOut(500 * kSecond, 2, true);
  EXPECT_NO_COMPLAINT(oracle_);
  EXPECT_EQ(oracle_.questions(), 1);
}

TEST_F(QuarantineOracleTest, NobodyIsLeftOutForEver) {
  Fail(20 * kSecond);
  const Nanos told = 21 * kSecond;
  oracle_.LeftOut(told, 2, true);
  QuarantineOracle late = oracle_;
  QuarantineOracle taken = oracle_;
  oracle_.WorldOrdered(told + 48 * kWindow, kGen2);
  EXPECT_NO_COMPLAINT(oracle_);
  late.WorldOrdered(told + 48 * kWindow + 1, kGen2);
  EXPECT_COMPLAINT(late, "generation 2 is formed without node-2, whose quarantine is over");
  taken.LeftOut(told + 6 * kWindow, 2, false);
  taken.WorldOrdered(told + 49 * kWindow, kGen2);
  EXPECT_NO_COMPLAINT(taken);
}

TEST_F(QuarantineOracleTest, NoWorldIsStoppedForWhoIsLeftOut) {
  Fail(20 * kSecond);
  oracle_.StopOrdered(kGen1, "node node-2 joins a world of 1");
  oracle_.LeftOut(21 * kSecond, 2, true);
  QuarantineOracle taken = oracle_;
  QuarantineOracle admitted = oracle_;
  QuarantineOracle other = oracle_;
  oracle_.StopOrdered(kGen2, "node node-2 joins a world of 1");
  EXPECT_COMPLAINT(oracle_, "generation 2 is stopped for node-2, which is left out");
  other.StopOrdered(kGen2, "node node-21 joins a world of 1");
  EXPECT_NO_COMPLAINT(other);
  EXPECT_EQ(other.questions(), 2);
  taken.LeftOut(30 * kSecond, 2, false);
  taken.StopOrdered(kGen2, "node node-2 joins a world of 1");
  EXPECT_NO_COMPLAINT(taken);
  admitted.Admitted(2);
  admitted.StopOrdered(kGen2, "node node-2 joins a world of 1");
  EXPECT_NO_COMPLAINT(admitted);
}

}  // namespace
}  // namespace fsdprun::sim
