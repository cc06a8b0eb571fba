#include "tests/sim/oracles/adoption_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr Nanos kSuccessorLease = 3 * kSecond;
constexpr char kNotBack[] = "lost its stream and did not reconnect within 3.0 s";

TEST(AdoptionOracleTest, ANodeHasItsLeaseToComeAgain) {
  AdoptionOracle oracle(kSuccessorLease);
  oracle.StreamLossHeard(10 * kSecond, 1);
  oracle.StreamLossHeard(12 * kSecond, 1);  // An attempt of the next agent, which failed.
  AdoptionOracle early = oracle;
  oracle.NodeLost(10 * kSecond + kSuccessorLease, 1, kNotBack);
  EXPECT_NO_COMPLAINT(oracle);
  EXPECT_EQ(oracle.questions(), 1);
  early.NodeLost(10 * kSecond + kSuccessorLease - kMilli, 1, kNotBack);
  EXPECT_COMPLAINT(early, "node 1 is given up 2999 ms after its stream broke");
}

TEST(AdoptionOracleTest, OnceItHasComeTheNextBreakCounts) {
  AdoptionOracle oracle(kSuccessorLease);
  oracle.Admitted(1);
  EXPECT_EQ(oracle.questions(), 0);
  oracle.StreamLossHeard(10 * kSecond, 1);
  oracle.Admitted(1);
  EXPECT_EQ(oracle.questions(), 1);
  oracle.StreamLossHeard(12 * kSecond, 1);
  oracle.NodeLost(14 * kSecond, 1, kNotBack);
  EXPECT_COMPLAINT(oracle, "given up 2000 ms");
}

TEST(AdoptionOracleTest, WhoIsDeadIsGivenUpOnceAndTheNextIsNot) {
  AdoptionOracle oracle(kSuccessorLease);
  oracle.AgentDied(1);
  oracle.StreamLossHeard(10 * kSecond, 1);
  oracle.NodeLost(11 * kSecond, 1, kNotBack);
  EXPECT_NO_COMPLAINT(oracle);
  oracle.NodeLost(11 * kSecond, 1, kNotBack);
  EXPECT_COMPLAINT(oracle, "given up 1000 ms");
}

TEST(AdoptionOracleTest, OtherReasonsAreOthersMatter) {
  AdoptionOracle oracle(kSuccessorLease);
  oracle.StreamLossHeard(10 * kSecond, 1);
  oracle.NodeLost(11 * kSecond, 1, "was replaced by a new agent");
  oracle.NodeLost(11 * kSecond, 2, kNotBack);
  EXPECT_NO_COMPLAINT(oracle);
}

}  // namespace
}  // namespace fsdprun::sim
