#pragma once

#include "launcher/coordinator/job_record.h"
#include "launcher/journal/record_codec.h"

namespace fsdprun {

inline JournaledJob SampleJob() { return {"run/\n1", 1, 2, 3}; }

/// A stopping world of two nodes, with no two values alike.
inline job::Record SampleRecord() {
  job::Record record;
  record.generation = Generation(5);
  record.budgets = {2, 3, 1, 2};
  record.launch_id = "launch";
  record.generation_floor = Generation(6);
  record.formations = 4;
  record.operator_signal = 10;
  record.agent_told_signal = true;
  record.operator_hurries = true;
  record.pause = std::chrono::seconds(7);
  job::WorldRecord& world = record.world;
  world.phase = job::WorldRecord::Phase::kStopping;
  world.world_size = 5;
  world.store = {"10.0.0.1", 30001};
  world.gone_succeeded = 1;
  world.stop_kind = job::StopKind::kOperator;
  world.stop_signal = 12;
  world.stop_grace = std::chrono::milliseconds(2500);
  world.stop_why = "stopped \xff";
  for (const int i : {0, 1}) {
    const Incarnation incarnation(100 + static_cast<uint64_t>(i));
    NodeInfo info{.incarnation = incarnation,
                  .name = "node \xfe",
                  .address = "10.0.0.2",
                  .local_world_size = 2,
                  .role = "trainer",
                  .requested_node_rank = {}};
    if (i == 1) {
      info.requested_node_rank = 1;
    }
    record.nodes.push_back({info, i, i == 1, 8 + static_cast<uint64_t>(i)});
    RankAssignment assignment;
    assignment.generation = record.generation;
    assignment.group_rank = i;
    assignment.group_world_size = 2;
    assignment.rank_offset = 2 * i;
    assignment.world_size = 5;
    assignment.local_world_size = 2;
    assignment.role = "trainer";
    assignment.role_world_size = 4;
    assignment.role_rank_offset = 2 * i;
    assignment.restart_count = 2;
    assignment.max_restarts = 3;
    assignment.launch_id = "launch";
    record.world.members.push_back({incarnation, assignment});
  }
  record.scaled = {3, 9};
  record.drained = {Incarnation(101), Incarnation(uint64_t{1} << 63)};
  record.quarantine = {
      {{"n \xfd", "10.0.0.3"}, 3, job::WorldBreak::Worker{4, 5, 6}, "it \xfc died", 2},
      {{"o", "10.0.0.4"}, 2, std::nullopt, "it was silent"}};
  return record;
}

inline JobOutcome SampleOutcome() {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 7;
  outcome.signal = 9;
  outcome.grace_cut_short = true;
  outcome.reason = "rank 1 exited with 7";
  outcome.restarts_used = 2;
  outcome.max_restarts = 3;
  outcome.generation = Generation(5);
  outcome.store = {"10.0.0.1", 30001};
  outcome.ends = {5, 1, 2, 1, {"rank 1 was killed on n"}};
  outcome.left_out = {"node o \xfb was left out"};
  Failure failure;
  failure.kind = CauseKind::kNodeStuck;
  failure.generation = Generation(5);
  failure.node_name = "n";
  failure.node_address = "10.0.0.2";
  failure.group_rank = 1;
  failure.what = "stuck";
  Failure worker = failure;
  worker.kind = CauseKind::kWorkerFailed;
  worker.worker.emplace();
  worker.worker->rank = 3;
  worker.worker->exit_code = 7;
  worker.worker->stderr_tail = {"last \xff words"};
  outcome.failure = FailureReport{worker, {failure}, 4, 5};
  return outcome;
}

}  // namespace fsdprun
