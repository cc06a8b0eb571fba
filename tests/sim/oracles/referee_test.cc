#include "tests/sim/oracles/referee.h"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr OutcomeOracle::Job kExpectedEnd{
    .min_nodes = 1, .max_restarts = 0, .join_timeout = kSecond};
constexpr RecoveryOracle::Job kRecovery{.min_nodes = 1, .max_nodes = 2};
constexpr Referee::Bounds kBounds{
    .alone = kSecond, .ended = kSecond, .stuck = kSecond, .place_sure = kSecond};

TEST(RefereeTest, ForwardsTheComplaintOfEachOracle) {
  Referee overlap(kExpectedEnd, kRecovery, {}, kBounds);
  overlap.StreamOpened(0, 1);
  overlap.StreamOpened(0, 2);
  overlap.ProcessStarted(kSecond, {21, 2, 2, kGen1});
  overlap.ProcessStarted(9 * kSecond, {12, 1, 1, kGen2});
  EXPECT_COMPLAINT(overlap, "overlaps a newer world");

  Referee fence(kExpectedEnd, kRecovery, {}, kBounds);
  fence.fence().ReportReceived(kGen1, kGen2, true);
  EXPECT_COMPLAINT(fence, "a report about generation 1");

  Referee outcome(kExpectedEnd, kRecovery, {}, kBounds);
  outcome.DeadlinePassed(20 * kSecond);
  EXPECT_COMPLAINT(outcome, "has not done its work");

  Referee cause(kExpectedEnd, kRecovery, {}, kBounds);
  cause.GivenUp(kSecond, 1, "stuck");
  EXPECT_COMPLAINT(cause, "was given up");

  Referee place(kExpectedEnd, kRecovery, {}, kBounds);
  place.PlaceTaken(kSecond);
  place.OrderSent(2 * kSecond, 1, {Incarnation(7), kGen1, CommitGeneration{}});
  EXPECT_COMPLAINT(place, "after another launcher became the host");

  Referee shutdown(kExpectedEnd, kRecovery, {}, kBounds);
  shutdown.CoordinatorDied(kSecond);
  shutdown.ProcessEnded(9 * kSecond, 21, 1);
  EXPECT_COMPLAINT(shutdown, "outlived the coordinator");
}

TEST(RefereeTest, DerivesTheSizeOfAWorldFromOrders) {
  Referee referee(kExpectedEnd, kRecovery, {}, kBounds);
  RankAssignment assignment;
  assignment.world_size = 1;
  for (const int node : {1, 2}) {
    const Incarnation agent(static_cast<uint64_t>(node));
    referee.AgentStarted(0, node, node);
    referee.StreamOpened(0, node);
    referee.ReportArrives(0, node, {agent, Generation{}, AgentJoined{}});
    referee.OrderSent(0, node, {agent, Generation{}, AdmitAgent{}});
  }
  referee.OrderSent(kSecond, 1, {Incarnation(1), kGen1, PrepareGeneration{assignment}});
  referee.OrdersGiven(kSecond);
  EXPECT_COMPLAINT(referee, "leaves out node 2");
}

TEST(RefereeTest, DerivesWorldsAndStopsFromOrders) {
  Referee referee(kExpectedEnd, kRecovery, {}, kBounds);
  RankAssignment assignment;
  assignment.generation = kGen1;
  assignment.world_size = 1;
  referee.OrderSent(0, 1, {Incarnation(7), kGen1, PrepareGeneration{assignment}});
  referee.RankFinished(kGen1, 0);
  referee.OrderSent(kSecond, 1, {Incarnation(7), kGen1, StopWorkers{SIGTERM, Duration{}, "why"}});
  referee.ledger().Add(WorkerExitFault(11, 2 * kSecond, kGen1));
  EXPECT_EQ(referee.ledger().MustHaveFailed(kGen1), nullptr) << "the stop came before";
  referee.Decided(3 * kSecond, SucceededIn(kGen1));
  EXPECT_NO_COMPLAINT(referee);
}

}  // namespace
}  // namespace fsdprun::sim
