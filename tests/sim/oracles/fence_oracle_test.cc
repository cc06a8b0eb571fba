#include "tests/sim/oracles/fence_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

TEST(FenceOracleTest, AStaleReportHasNoEffect) {
  FenceOracle oracle;
  oracle.ReportReceived(kGen2, kGen2, true);
  EXPECT_EQ(oracle.questions(), 0);
  oracle.ReportReceived(kGen1, kGen2, false);
  EXPECT_NO_COMPLAINT(oracle);
  oracle.ReportReceived(kGen1, kGen2, true);
  EXPECT_COMPLAINT(oracle, "a report about generation 1");
  EXPECT_EQ(oracle.questions(), 2);
}

TEST(FenceOracleTest, AStaleOrderTouchesNoProcess) {
  FenceOracle oracle;
  oracle.OrderReceived(kGen2, kGen2, true);
  oracle.OrderReceived(Generation{}, kGen2, true);
  EXPECT_EQ(oracle.questions(), 0);
  oracle.OrderReceived(kGen1, kGen2, false);
  EXPECT_NO_COMPLAINT(oracle);
  oracle.OrderReceived(kGen1, kGen2, true);
  EXPECT_COMPLAINT(oracle, "an order about generation 1");
  EXPECT_EQ(oracle.questions(), 2);
}

TEST(FenceOracleTest, EveryGenerationUsesItsOwnStore) {
  FenceOracle oracle;
  oracle.StoreMade(kGen1, 20001);
  oracle.StoreMade(kGen2, 20002);
  oracle.StoreUsed(kGen2, 20002);
  EXPECT_NO_COMPLAINT(oracle);
  FenceOracle unknown = oracle;
  unknown.StoreUsed(kGen2, 20003);
  EXPECT_COMPLAINT(unknown, "a store of nobody");
  oracle.StoreUsed(kGen2, 20001);
  EXPECT_COMPLAINT(oracle, "a store of generation 1");
}

}  // namespace
}  // namespace fsdprun::sim
