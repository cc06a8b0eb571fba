#include "tests/sim/oracles/load_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr char kSilent[] = "was silent for 3.0 s";
constexpr char kBroken[] = "lost its stream and did not reconnect within 3.0 s";

TEST(LoadOracleTest, NobodyIsGivenUpForSilenceBeforeAWorldIsCommitted) {
  LoadOracle oracle;
  oracle.NodeJoined();
  oracle.NodeLost("node-1", kSilent, /*is_only_late=*/false);
  EXPECT_COMPLAINT(oracle, "node node-1 is given up before any world is committed");
  EXPECT_EQ(oracle.questions(), 1);
}

TEST(LoadOracleTest, ANodeThatIsOnlyLateIsGivenUpForNoReason) {
  LoadOracle oracle;
  LoadOracle dead = oracle;
  oracle.NodeLost("node-1", kBroken, /*is_only_late=*/true);
  EXPECT_COMPLAINT(oracle, "did not reconnect");
  dead.NodeLost("node-1", kBroken, /*is_only_late=*/false);
  EXPECT_NO_COMPLAINT(dead);
}

TEST(LoadOracleTest, OnceAWorldIsCommittedLeasesCount) {
  LoadOracle oracle;
  oracle.WorldCommitted();
  oracle.NodeJoined();
  oracle.NodeLost("node-1", kSilent, /*is_only_late=*/true);
  EXPECT_NO_COMPLAINT(oracle);
  EXPECT_EQ(oracle.questions(), 0);
}

}  // namespace
}  // namespace fsdprun::sim
