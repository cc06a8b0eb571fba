#include "launcher/run/own_failure.h"

#include <gtest/gtest.h>

#include "tests/unit/agent/node/agent_driver.h"

namespace fsdprun {
namespace {

TEST(OwnFailureTest, AWorkerThatFailedBeforeTheCoordinatorWasGivenUpIsTheCause) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  EXPECT_FALSE(OutcomeOfOwnFailures(agent.machine_).has_value());
  agent.Step(node::StreamLost{"connection reset"});
  agent.Reap(1, 1, 5);
  agent.Wait(std::chrono::milliseconds(30'010));  // The other worker is stopped with the agent.
  agent.Reap(1, 0, 0, SIGTERM);
  const auto outcome = OutcomeOfOwnFailures(agent.machine_);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->kind, OutcomeKind::kFailed);
  EXPECT_EQ(outcome->failure->root.what, "rank 1 exited with 5");
  EXPECT_EQ(outcome->failure->root.node_name, "node-7");
  EXPECT_EQ(outcome->failure->collateral, 1);
}

TEST(OwnFailureTest, WorkersThatTheAgentStopsAreNoFailure) {
  Agent agent;
  agent.Up();
  agent.Run(1);
  agent.Step(node::StreamLost{"connection reset"});
  agent.Wait(std::chrono::seconds(31));
  agent.Reap(1, 0, 0, SIGKILL);
  agent.Reap(1, 1, 0, SIGKILL);
  EXPECT_FALSE(OutcomeOfOwnFailures(agent.machine_).has_value());
}

}  // namespace
}  // namespace fsdprun
