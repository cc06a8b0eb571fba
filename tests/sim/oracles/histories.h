#pragma once

// What the oracles' tests build their made-up histories from. Each test feeds an oracle a history
// with a mistake in it, which must be reported, and where the limit matters the nearest correct
// history, which must not.

#include <gtest/gtest.h>

#include <string>

#include "tests/sim/oracles/fault_ledger.h"

namespace fsdprun::sim {

inline constexpr Generation kGen1{1};
inline constexpr Generation kGen2{2};

/// A worker on node 1 exits with code 1 and an error message of its own.
inline InjectedFault WorkerExitFault(int64_t pid, Nanos at, Generation g) {
  InjectedFault fault;
  fault.kind = FaultKind::kKillWorker;
  fault.at = at;
  fault.node = 1;
  fault.node_name = "node-1";
  fault.generation = fault.breaks = g;
  fault.pid = pid;
  fault.exit_code = 1;
  fault.tells_its_error = true;
  return fault;
}

/// A fault of node 2 or of its link.
inline InjectedFault NodeFault(FaultKind kind, Nanos at, Nanos until) {
  InjectedFault fault;
  fault.kind = kind;
  fault.at = at;
  fault.until = until;
  fault.node = 2;
  fault.node_name = "node-2";
  return fault;
}

inline Failure WorkerFailure(const std::string& node, int64_t pid, Generation g) {
  Failure failure;
  failure.generation = g;
  failure.node_name = node;
  failure.worker = WorkerExit{};
  failure.worker->pid = pid;
  failure.worker->exit_code = 1;
  return failure;
}

inline Failure NodeLoss(const std::string& node, Generation g) {
  Failure failure;
  failure.kind = CauseKind::kNodeLost;
  failure.generation = g;
  failure.node_name = node;
  return failure;
}

inline JobOutcome FailedWith(const Failure& root) {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.generation = root.generation;
  outcome.failure = FailureReport{root, {}, 0, 0};
  return outcome;
}

inline JobOutcome SucceededIn(Generation g) {
  JobOutcome outcome;
  outcome.generation = g;
  return outcome;
}

#define EXPECT_NO_COMPLAINT(oracle) EXPECT_EQ((oracle).complaint(), "")
#define EXPECT_COMPLAINT(oracle, part) \
  EXPECT_NE((oracle).complaint().find(part), std::string::npos) << (oracle).complaint()

}  // namespace fsdprun::sim
