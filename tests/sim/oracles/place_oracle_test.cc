#include "tests/sim/oracles/place_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

/// Its place is sure for 5 s; generation 1 runs and is stopped at 20 s.
PlaceOracle RunsOnce() {
  PlaceOracle oracle(5 * kSecond);
  oracle.WorldOrdered(kGen1);
  oracle.WorkersOrdered(5 * kSecond, kGen1);
  EXPECT_NO_COMPLAINT(oracle);
  oracle.LookedUp(19 * kSecond);
  oracle.StopOrdered(20 * kSecond, kGen1);
  return oracle;
}

TEST(PlaceOracleTest, FirstWorldIsStartedSoonAfterThePlaceWasTakenOrLookedUp) {
  PlaceOracle late(5 * kSecond);
  late.WorldOrdered(kGen1);
  PlaceOracle looked = late;
  late.WorkersOrdered(5 * kSecond + 1, kGen1);
  EXPECT_COMPLAINT(late, "5000 ms after somebody looked");
  looked.LookedUp(kSecond);
  looked.WorkersOrdered(5 * kSecond + 1, kGen1);
  EXPECT_NO_COMPLAINT(looked);
  EXPECT_EQ(looked.questions(), 1);
}

TEST(PlaceOracleTest, NoWorldIsStartedAtAnothersPlace) {
  PlaceOracle oracle(5 * kSecond);
  oracle.WorldOrdered(kGen1);
  oracle.Taken(2 * kSecond);
  oracle.WorkersOrdered(3 * kSecond, kGen1);
  EXPECT_COMPLAINT(oracle, "generation 1 are started 1000 ms after another launcher");
}

TEST(PlaceOracleTest, WhatWasFoundBeforeAStopDoesNotCountAfterIt) {
  PlaceOracle oracle = RunsOnce();
  oracle.WorldOrdered(kGen2);
  PlaceOracle looked = oracle;
  oracle.WorkersOrdered(22 * kSecond, kGen2);
  EXPECT_COMPLAINT(oracle, "since the last world began to stop");
  looked.LookedUp(20 * kSecond);
  looked.StopOrdered(21 * kSecond, kGen1);  // Repeated.
  looked.WorkersOrdered(22 * kSecond, kGen2);
  looked.WorkersOrdered(60 * kSecond, kGen2);
  EXPECT_NO_COMPLAINT(looked);
  EXPECT_EQ(looked.questions(), 2);
}

TEST(PlaceOracleTest, WorldThatWasOnlyPreparedIsStoppedLikeAnother) {
  PlaceOracle oracle(5 * kSecond);
  oracle.WorldOrdered(kGen1);
  oracle.StopOrdered(kSecond, kGen1);
  oracle.WorldOrdered(kGen2);
  oracle.WorkersOrdered(2 * kSecond, kGen2);
  EXPECT_COMPLAINT(oracle, "since the last world began to stop");
}

TEST(PlaceOracleTest, NothingIsAskedWhereNobodyCanTakeThePlace) {
  PlaceOracle oracle(0);
  oracle.WorldOrdered(kGen1);
  oracle.WorkersOrdered(60 * kSecond, kGen1);
  EXPECT_NO_COMPLAINT(oracle);
  EXPECT_EQ(oracle.questions(), 0);
}

}  // namespace
}  // namespace fsdprun::sim
