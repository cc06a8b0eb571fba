#include "agent/local/agent_memo.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>

namespace fsdprun {
namespace {

MonoTime At(int64_t ns) { return MonoTime(Duration(ns)); }

AgentMemo Full() {
  AgentMemo memo;
  NodeRecord& node = memo.node;
  node.incarnation = Incarnation(7);
  node.highest_seen = Generation(4);
  node.assignment.generation = Generation(4);
  node.assignment.group_rank = 1;
  node.assignment.group_world_size = 2;
  node.assignment.rank_offset = 2;
  node.assignment.world_size = 4;
  node.assignment.local_world_size = 2;
  node.assignment.role_world_size = 4;
  node.assignment.restart_count = 1;
  node.assignment.max_restarts = 3;
  node.assignment.launch_id = "launch";
  node.assignment.master_addr = "10.0.0.1";
  node.assignment.master_port = 4711;
  node.phase = node::Phase::kStopping;
  node.reports = {{AgentPrepared{}, At(5)},
                  {NodeFaulted{CauseKind::kSpawnFailed, "no memory", {}}, At(6)}};
  node.kill_at = At(100);
  node.stop_signal = 15;
  node.stopped_at = At(90);
  node.leaving = {.is_released = true,
                  .was_cut_off = true,
                  .leaves_job = true,
                  .signal = 2,
                  .exit_code = 3,
                  .message = "why \xff",
                  .exit_at = At(120)};
  node.was_admitted = true;
  node.may_be_taken_over = true;
  node.node_lease = Duration(3);
  memo.dirs = {.logs = "/l \xff", .spool = "/s", .vitals = "/v"};
  memo.store = {.pid = 42, .start_time_ticks = 43};
  memo.timer_file = "/t";
  return memo;
}

TEST(AgentMemoTest, SurvivesTheRoundTrip) {
  const AgentMemo memo = Full();
  const absl::StatusOr<AgentMemo> again = DecodeMemo(EncodeMemo(memo));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(EncodeMemo(*again), EncodeMemo(memo));
  EXPECT_EQ(again->node.incarnation, Incarnation(7));
  EXPECT_EQ(again->node.assignment.master_port, 4711);
  EXPECT_EQ(again->node.assignment.launch_id, "launch");
  EXPECT_EQ(again->node.phase, node::Phase::kStopping);
  ASSERT_EQ(again->node.reports.size(), 2u);
  EXPECT_EQ(std::get<NodeFaulted>(again->node.reports[1].message).what, "no memory");
  EXPECT_EQ(again->node.reports[1].happened_at, At(6));
  EXPECT_EQ(again->node.kill_at, At(100));
  EXPECT_EQ(again->node.stopped_at, At(90));
  EXPECT_EQ(again->node.killed_at, MonoTime::max());
  EXPECT_EQ(again->node.leaving, memo.node.leaving);
  EXPECT_TRUE(again->node.was_admitted && again->node.may_be_taken_over);
  EXPECT_EQ(again->node.node_lease, Duration(3));
  EXPECT_EQ(again->dirs.logs, "/l \xff");
  EXPECT_EQ(again->dirs.vitals, "/v");
  EXPECT_EQ(again->store.pid, 42);
  EXPECT_EQ(again->store.start_time_ticks, 43u);
  EXPECT_EQ(again->timer_file, "/t");
}

TEST(AgentMemoTest, OfAnAgentThatHoldsNoGeneration) {
  AgentMemo memo;
  memo.node.incarnation = Incarnation(7);
  const absl::StatusOr<AgentMemo> again = DecodeMemo(EncodeMemo(memo));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->node.assignment.generation, Generation());
  EXPECT_EQ(again->node.phase, node::Phase::kIdle);
  EXPECT_EQ(again->node.leaving, std::nullopt);
}

TEST(AgentMemoTest, WhatNoAgentHasLeftIsRefused) {
  EXPECT_FALSE(DecodeMemo("").ok());
  EXPECT_FALSE(DecodeMemo("nonsense").ok());
  AgentMemo memo = Full();
  memo.node.phase = node::Phase::kIdle;
  EXPECT_FALSE(DecodeMemo(EncodeMemo(memo)).ok());
  memo = Full();
  memo.node.assignment.generation = Generation();
  EXPECT_FALSE(DecodeMemo(EncodeMemo(memo)).ok());
  memo = Full();
  memo.node.phase = static_cast<node::Phase>(99);
  EXPECT_FALSE(DecodeMemo(EncodeMemo(memo)).ok());
  memo = Full();
  memo.node.incarnation = Incarnation();
  EXPECT_FALSE(DecodeMemo(EncodeMemo(memo)).ok());
}

}  // namespace
}  // namespace fsdprun
