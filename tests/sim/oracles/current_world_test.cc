#include "tests/sim/oracles/current_world.h"

#include <gtest/gtest.h>

#include "tests/sim/oracles/histories.h"

namespace fsdprun::sim {
namespace {

constexpr Incarnation kA{1};
constexpr Incarnation kB{2};

class CurrentWorldTest : public ::testing::Test {
 protected:
  void Order(Generation g, CoordinatorMessage message, const std::set<Incarnation>& agents) {
    for (const Incarnation agent : agents) {
      world_.OrderSent({agent, g, message});
    }
    world_.OrdersGiven();
  }
  bool HeedsExit(Incarnation agent, Generation g) const {
    return world_.IsOfMember({agent, g, WorkerExited{}});
  }

  CurrentWorld world_;
};

TEST_F(CurrentWorldTest, ConsistsOfWhoWasOrderedIntoTheNewestWorld) {
  Order(kGen1, PrepareGeneration{}, {kA, kB});
  EXPECT_TRUE(HeedsExit(kA, kGen1));
  EXPECT_FALSE(HeedsExit(kA, kGen2));
  Order(kGen2, PrepareGeneration{}, {kB});
  EXPECT_EQ(world_.generation(), kGen2);
  EXPECT_FALSE(HeedsExit(kB, kGen1));
  EXPECT_FALSE(HeedsExit(kA, kGen2));
  EXPECT_TRUE(HeedsExit(kB, kGen2));
}

TEST_F(CurrentWorldTest, LosesWhoIsDismissedOrNotToldToStop) {
  Order(kGen1, PrepareGeneration{}, {kA, kB});
  Order(Generation{}, ReleaseAgent{}, {kA});
  EXPECT_FALSE(HeedsExit(kA, kGen1));
  Order(kGen2, PrepareGeneration{}, {kA, kB});
  Order(kGen2, StopWorkers{}, {kA});
  EXPECT_TRUE(HeedsExit(kA, kGen2));
  EXPECT_FALSE(HeedsExit(kB, kGen2));
  Order(kGen2, StopWorkers{}, {kB});  // once more, to one that has come back
  EXPECT_TRUE(HeedsExit(kA, kGen2));
}

TEST_F(CurrentWorldTest, AReportAboutAnotherGenerationIsStale) {
  Order(kGen2, PrepareGeneration{}, {kA});
  EXPECT_TRUE(world_.IsStale({kA, kGen1, WorkerExited{}}));
  EXPECT_FALSE(world_.IsStale({kA, kGen2, WorkerExited{}}));
  EXPECT_FALSE(world_.IsStale({kA, kGen1, AgentLeft{}}));
  EXPECT_FALSE(world_.IsStale({kA, kGen1, AgentJoined{}}));
  NodeFaulted fault;
  fault.kind = CauseKind::kKeeperDied;
  EXPECT_TRUE(world_.IsStale({kA, kGen1, fault}));
  fault.kind = CauseKind::kNodeWedged;
  EXPECT_FALSE(world_.IsStale({kA, kGen1, fault}));
}

TEST_F(CurrentWorldTest, TheAnswerToAStopIsNotStaleOnce) {
  Order(kGen2, PrepareGeneration{}, {kA});
  const FromAgent stopped{kB, kGen1, WorkersStopped{}};
  EXPECT_TRUE(world_.IsStale(stopped));
  Order(kGen1, StopWorkers{}, {kB});
  EXPECT_FALSE(world_.IsStale(stopped));
  world_.ReportArrived(stopped);
  EXPECT_TRUE(world_.IsStale(stopped));
}

}  // namespace
}  // namespace fsdprun::sim
