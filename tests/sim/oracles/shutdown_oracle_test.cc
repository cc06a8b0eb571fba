#include "tests/sim/oracles/shutdown_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

class ShutdownOracleTest : public ::testing::Test {
 protected:
  ShutdownOracleTest() { hearing_.StreamOpened(0, 1); }

  Hearing hearing_;
  ShutdownOracle oracle_{hearing_, kSecond};
};

TEST_F(ShutdownOracleTest, WorkersAndAgentsEndWithinTheBound) {
  oracle_.ProcessEnded(50 * kSecond, 1);
  EXPECT_EQ(oracle_.questions(), 0);
  oracle_.CoordinatorDied(60 * kSecond);
  oracle_.ProcessEnded(61 * kSecond, 1);
  oracle_.AgentExited(61 * kSecond, 1, 1);
  EXPECT_NO_COMPLAINT(oracle_);
  EXPECT_EQ(oracle_.questions(), 2);
  ShutdownOracle worker = oracle_;
  worker.ProcessEnded(61 * kSecond + kMilli, 1);
  EXPECT_COMPLAINT(worker, "a worker of node 1 outlived");
  oracle_.AgentExited(61 * kSecond + kMilli, 1, 1);
  EXPECT_COMPLAINT(oracle_, "the agent of node 1 outlived");
}

TEST_F(ShutdownOracleTest, TheBoundOfAPausedNodeBeginsWhenItResumes) {
  hearing_.Pause(55 * kSecond, 1, 70 * kSecond);
  oracle_.CoordinatorDied(60 * kSecond);
  oracle_.ProcessEnded(71 * kSecond, 1);
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.ProcessEnded(72 * kSecond, 1);
  EXPECT_COMPLAINT(oracle_, "a worker of node 1 outlived");
}

TEST_F(ShutdownOracleTest, AnAgentExitsWithZeroOnlyIfTheJobHadBeenDecided) {
  oracle_.CoordinatorDied(60 * kSecond);
  ShutdownOracle decided = oracle_;
  decided.Decided();
  decided.AgentExited(61 * kSecond, 1, 0);
  EXPECT_NO_COMPLAINT(decided);
  oracle_.AgentExited(61 * kSecond, 1, 0);
  EXPECT_COMPLAINT(oracle_, "exits with 0");
}

}  // namespace
}  // namespace fsdprun::sim
