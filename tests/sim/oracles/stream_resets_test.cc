#include "tests/sim/oracles/stream_resets.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr Nanos kMadeGood = StreamResets::kMadeGood;
constexpr int kPlace = 7;

class StreamResetsTest : public ::testing::Test {
 protected:
  StreamResetsTest() {
    resets_.AgentStarted(0, 1, 1);
    resets_.AgentStarted(0, 2, kPlace);
  }
  /// Of node 2.
  void ResetAt(Nanos at) { resets_.Reset(NodeFault(FaultKind::kResetStream, at, at)); }
  size_t Felt() const { return ledger_.faults().size(); }

  FaultLedger ledger_{kSecond};
  StreamResets resets_{ledger_};
};

TEST_F(StreamResetsTest, OneResetIsMadeGood) {
  ResetAt(kSecond);
  ResetAt(kSecond + kMadeGood / 2);
  ResetAt(kSecond + kMadeGood);
  EXPECT_EQ(Felt(), 0u);
}

TEST_F(StreamResetsTest, SeveralInARowMayUseUpTheGrace) {
  ResetAt(kSecond);
  ResetAt(kSecond + 1);
  ResetAt(kSecond + kMadeGood - 1);
  EXPECT_EQ(Felt(), 1u);
}

TEST_F(StreamResetsTest, AnAgentThatLeavesDoesNotRepeatItself) {
  resets_.AgentLeaves(2);
  ResetAt(kSecond);
  EXPECT_EQ(Felt(), 1u);
  resets_.AgentStarted(10 * kSecond, 2, kPlace);
  ResetAt(20 * kSecond);
  EXPECT_EQ(Felt(), 1u) << "another agent";
}

TEST_F(StreamResetsTest, ARivalMayTakeTheRank) {
  resets_.AgentStarted(kSecond, 3, kPlace);
  ResetAt(2 * kSecond);
  EXPECT_EQ(Felt(), 1u);
}

TEST_F(StreamResetsTest, ARivalThatIsStartedBeforeTheResetIsMadeGoodMayTakeTheRank) {
  ResetAt(kSecond);
  resets_.AgentStarted(kSecond + 1, 1, 1);
  resets_.AgentStarted(kSecond + 2, 2, kPlace);
  EXPECT_EQ(Felt(), 0u) << "they have other places";
  resets_.AgentStarted(kSecond + kMadeGood - 1, 3, kPlace);
  ASSERT_EQ(Felt(), 1u);
  EXPECT_EQ(ledger_.faults().front().node, 2);
  EXPECT_EQ(ledger_.faults().front().at, kSecond);
  resets_.AgentStarted(kSecond + kMadeGood, 4, kPlace);
  EXPECT_EQ(Felt(), 1u) << "too late";
}

}  // namespace
}  // namespace fsdprun::sim
