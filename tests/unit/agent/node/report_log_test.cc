#include "agent/node/report_log.h"

#include <gtest/gtest.h>

#include <variant>
#include <vector>

namespace fsdprun {
namespace {

using std::chrono::seconds;

const MonoTime kReported{std::chrono::hours(1)};

WorkerExited Exited(int code) {
  WorkerExited exited;
  exited.exit.exit_code = code;
  exited.exit.rank = 3;
  return exited;
}

TEST(ReportLogTest, ReportsAreRepeatedInOrderWithTheirNewAge) {
  ReportLog log;
  log.Add(AgentPrepared{}, kReported, kReported);
  EXPECT_EQ(std::get<WorkerExited>(log.Add(Exited(1), kReported - seconds(2), kReported)).age,
            seconds(2));
  log.Add(NodeFaulted{CauseKind::kKeeperDied, "it died", {}}, kReported, kReported);
  log.Add(WorkersStopped{}, kReported, kReported);
  const std::vector<AgentMessage> again = log.Repeat(kReported + seconds(5));
  ASSERT_EQ(again.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<AgentPrepared>(again[0]));
  EXPECT_EQ(std::get<WorkerExited>(again[1]).age, seconds(7));
  EXPECT_EQ(std::get<NodeFaulted>(again[2]).age, seconds(5));
  EXPECT_TRUE(std::holds_alternative<WorkersStopped>(again[3]));
  log.Clear();
  EXPECT_TRUE(log.Repeat(kReported).empty());
}

TEST(ReportLogTest, FailuresAreTheFailedWorkersAndFaultsWithWhereTheyHappened) {
  ReportLog log;
  log.Add(AgentStarted{}, kReported, kReported);
  log.Add(Exited(0), kReported, kReported);
  log.Add(Exited(9), kReported - seconds(1), kReported);
  log.Add(NodeFaulted{CauseKind::kKeeperDied, "it died", {}}, kReported, kReported);
  NodeInfo node;
  node.name = "node-7";
  node.address = "10.0.0.7";
  RankAssignment assignment;
  assignment.generation = Generation(4);
  assignment.group_rank = 2;
  const std::vector<OwnFailure> failures = log.Failures(node, assignment);
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].failure.what, "rank 3 exited with 9");
  EXPECT_EQ(failures[0].failure.kind, CauseKind::kWorkerFailed);
  EXPECT_EQ(failures[0].failure.worker->exit_code, 9);
  EXPECT_EQ(failures[0].at, kReported - seconds(1));
  EXPECT_EQ(failures[1].failure.kind, CauseKind::kKeeperDied);
  EXPECT_EQ(failures[1].failure.what, "it died");
  for (const OwnFailure& own : failures) {
    EXPECT_EQ(own.failure.generation, Generation(4));
    EXPECT_EQ(own.failure.node_name, "node-7");
    EXPECT_EQ(own.failure.node_address, "10.0.0.7");
    EXPECT_EQ(own.failure.group_rank, 2);
  }
}

}  // namespace
}  // namespace fsdprun
