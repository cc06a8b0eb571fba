#include "tests/sim/oracles/overlap_oracle.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr Nanos kAloneBound = 8 * kSecond;
constexpr Nanos kRelease = OverlapOracle::kStopsWithin;

class OverlapOracleTest : public ::testing::Test {
 protected:
  OverlapOracleTest() {
    for (const int node : {1, 2}) {
      hearing_.StreamOpened(0, node);
    }
  }
  /// Generation 1 on nodes 1 and 2; then only process 21 on node 2 is left of it.
  void RunGeneration1() {
    oracle_.ProcessStarted(kSecond, {11, 1, 1, kGen1});
    oracle_.ProcessStarted(kSecond, {21, 2, 2, kGen1});
    oracle_.ProcessEnded(2 * kSecond, 11);
  }
  /// On node 1.
  void StartGeneration2(Nanos at) { oracle_.ProcessStarted(at, {12, 1, 1, kGen2}); }
  void CutOffNode2(Nanos at, Nanos until) {
    oracle_.HearingChanges(at, 2);
    hearing_.CutOff(at, 2, until);
  }

  Hearing hearing_;
  OverlapOracle oracle_{hearing_, kAloneBound};
};

TEST_F(OverlapOracleTest, AReachableNodeEndsItsWorkersBeforeTheNextWorldStarts) {
  RunGeneration1();
  OverlapOracle ended = oracle_;
  ended.ProcessEnded(3 * kSecond, 21);
  ended.ProcessStarted(4 * kSecond, {12, 1, 1, kGen2});
  EXPECT_NO_COMPLAINT(ended);
  OverlapOracle after_job = oracle_;
  after_job.JobEnded(5 * kSecond);
  EXPECT_COMPLAINT(after_job, "process 21");
  StartGeneration2(4 * kSecond);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, APartitionedNodeHasABoundedTimeAfterItHears) {
  RunGeneration1();
  CutOffNode2(3 * kSecond, 9 * kSecond);
  StartGeneration2(7 * kSecond);
  OverlapOracle late = oracle_;
  oracle_.ProcessEnded(9 * kSecond + kRelease, 21);
  EXPECT_NO_COMPLAINT(oracle_);
  late.ProcessEnded(9 * kSecond + kRelease + kMilli, 21);
  EXPECT_COMPLAINT(late, "could have ended it 1 ms ago");
}

TEST_F(OverlapOracleTest, ALaterPartitionDoesNotExcuseAnEarlierDelay) {
  RunGeneration1();
  CutOffNode2(3 * kSecond, 9 * kSecond);
  StartGeneration2(7 * kSecond);
  CutOffNode2(15 * kSecond, 30 * kSecond);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, APausedNodeOrCoordinatorExcusesAnOverlap) {
  RunGeneration1();
  oracle_.HearingChanges(3 * kSecond, 2);
  hearing_.Pause(3 * kSecond, 2, 9 * kSecond);
  StartGeneration2(7 * kSecond);
  oracle_.HearingChangesEverywhere(8 * kSecond);
  hearing_.PauseCoordinator(8 * kSecond, 14 * kSecond);
  oracle_.ProcessEnded(15 * kSecond, 21);
  EXPECT_NO_COMPLAINT(oracle_);
}

TEST_F(OverlapOracleTest, AnUnreachableNodeEndsItsWorkersByItself) {
  // While its agent is stopped a node does nothing: the time counts from when it goes on.
  const Nanos resumed = 60 * kSecond;
  for (const bool is_paused : {false, true}) {
    const Nanos bound = (is_paused ? resumed : 3 * kSecond) + kAloneBound + kRelease;
    for (const Nanos ended : {bound, bound + kMilli}) {
      Hearing hearing;
      hearing.StreamOpened(0, 2);
      OverlapOracle oracle(hearing, kAloneBound);
      oracle.ProcessStarted(kSecond, {21, 2, 2, kGen1});
      if (is_paused) {
        hearing.Pause(3 * kSecond, 2, resumed);
      } else {
        hearing.CutOff(3 * kSecond, 2, 90 * kSecond);
      }
      hearing.StreamClosed(6 * kSecond, 2);
      oracle.ProcessStarted(7 * kSecond, {12, 1, 1, kGen2});
      oracle.ProcessEnded(ended, 21);
      EXPECT_EQ(oracle.complaint().empty(), ended == bound) << is_paused << " " << ended;
    }
  }
}

TEST_F(OverlapOracleTest, NoWorkerOfAnOldGenerationIsStarted) {
  oracle_.ProcessStarted(kSecond, {12, 1, 1, kGen2});
  oracle_.ProcessStarted(2 * kSecond + kRelease, {21, 2, 2, kGen1});
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, OrphansOfADeadAgentEndWithinTheirBound) {
  RunGeneration1();
  oracle_.AgentDied(3 * kSecond, 2);
  hearing_.StreamClosed(3 * kSecond, 2);
  StartGeneration2(3 * kSecond + OverlapOracle::kOrphansEndWithin);
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.ProcessEnded(4 * kSecond, 21);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, AnUnkillableProcessMayOverlapUntilItIsKillable) {
  RunGeneration1();
  oracle_.BecameUnkillable(21);
  StartGeneration2(4 * kSecond);
  EXPECT_NO_COMPLAINT(oracle_);
  oracle_.BecameKillable(21);
  oracle_.ProcessEnded(20 * kSecond, 21);
  EXPECT_COMPLAINT(oracle_, "process 21");
}

TEST_F(OverlapOracleTest, ANodeRunsOneGenerationExceptBesideAnUnkillableOfAnEarlierAgent) {
  oracle_.ProcessStarted(kSecond, {21, 2, 2, kGen1});
  CutOffNode2(2 * kSecond, 9 * kSecond);
  OverlapOracle killable = oracle_;
  killable.ProcessStarted(3 * kSecond, {22, 2, 7, kGen2});
  EXPECT_COMPLAINT(killable, "was started beside");
  oracle_.BecameUnkillable(21);
  OverlapOracle same_agent = oracle_;
  same_agent.ProcessStarted(3 * kSecond, {22, 2, 2, kGen2});
  EXPECT_COMPLAINT(same_agent, "was started beside");
  oracle_.ProcessStarted(3 * kSecond, {22, 2, 7, kGen2});
  EXPECT_NO_COMPLAINT(oracle_);
}

}  // namespace
}  // namespace fsdprun::sim
