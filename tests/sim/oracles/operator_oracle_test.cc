#include "tests/sim/oracles/operator_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr Incarnation kDrained{7};
constexpr Incarnation kOther{8};

ReleaseAgent Release(int exit_code, bool job_goes_on) {
  return {.exit_code = exit_code, .reason = "why", .cut_off = true, .job_goes_on = job_goes_on};
}

TEST(OperatorOracle, OthersGoOnInTheNextWorld) {
  OperatorOracle oracle;
  oracle.WorldOrdered(kDrained, kGen1);
  EXPECT_EQ(oracle.questions(), 0);
  oracle.DrainOrdered(kDrained);
  oracle.Released(kDrained, Release(0, true));
  oracle.WorldOrdered(kOther, kGen2);
  oracle.IsThere(kOther);
  EXPECT_NO_COMPLAINT(oracle);
  EXPECT_EQ(oracle.questions(), 2);
}

TEST(OperatorOracle, DrainedAgentIsInNoOtherWorld) {
  OperatorOracle oracle;
  oracle.DrainOrdered(kDrained);
  oracle.WorldOrdered(kDrained, kGen2);
  EXPECT_COMPLAINT(oracle, "was drained is in generation 2");
}

TEST(OperatorOracle, NobodyElseIsToldToGo) {
  OperatorOracle oracle;
  oracle.Released(kOther, Release(1, true));  // Of no use to the job.
  oracle.Released(kOther, Release(0, false));
  EXPECT_NO_COMPLAINT(oracle);
  oracle.Released(kOther, Release(0, true));
  EXPECT_COMPLAINT(oracle, "as if its node were drained");
}

TEST(OperatorOracle, DrainedAgentEndsWithZeroWhateverBecomesOfTheJob) {
  OperatorOracle oracle;
  oracle.DrainOrdered(kDrained);
  oracle.Released(kDrained, Release(1, false));
  EXPECT_COMPLAINT(oracle, "for another reason");
}

TEST(OperatorOracle, DrainedAgentGoes) {
  OperatorOracle oracle;
  oracle.DrainOrdered(kDrained);
  oracle.IsThere(kDrained);
  EXPECT_COMPLAINT(oracle, "still there");
}

}  // namespace
}  // namespace fsdprun::sim
