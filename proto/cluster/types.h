#pragma once

// Plain data that the coordinator and the agents share: who a node is, what a generation assigns to
// it, how a worker ended, how the job ended. Values only; no behaviour but small predicates.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/strong_id.h"

namespace fsdprun {

/// Number of a formed world, increased by one each time a world is formed; the fencing token of
/// everything that belongs to it. 0 means none.
using Generation = StrongId<struct GenerationTag>;
/// Random non-zero number of one run of an agent: separates a restarted agent from its predecessor.
using Incarnation = StrongId<struct IncarnationTag>;

/// No job has more.
inline constexpr int kMaxNodes = 65536;

/// What an agent says about its node when it joins.
struct NodeInfo {
  Incarnation incarnation;
  /// Host name or the name the operator gave; not unique (two agents may share a machine).
  std::string name;
  /// Numeric address under which the other nodes reach this one; becomes MASTER_ADDR if it gets
  /// group rank 0.
  std::string address;
  /// Number of workers this node runs; at least 1. May differ from node to node.
  int local_world_size = 1;
  /// Workers of equal role are ranked together (torchrun's --role).
  std::string role = "default";
  /// The group rank that the user requested (torchrun's --node-rank).
  std::optional<int> requested_node_rank;
  /// Another agent goes on in this one's place if it is killed, as the same incarnation: see
  /// Note [Adopting workers].
  bool has_successor = false;
};

/// One node's place in the world of `generation`. Worker `i` of the node has LOCAL_RANK i, RANK
/// rank_offset + i and ROLE_RANK role_rank_offset + i.
struct RankAssignment {
  Generation generation;
  int group_rank = 0;
  int group_world_size = 1;
  int rank_offset = 0;
  int world_size = 1;
  int local_world_size = 1;
  std::string role = "default";
  int role_rank_offset = 0;
  int role_world_size = 1;
  /// Failed generations so far (TORCHELASTIC_RESTART_COUNT): equal on all nodes; membership changes
  /// do not count.
  int restart_count = 0;
  int max_restarts = 0;
  /// Runs of the same job before this launch, which a scheduler has started again: workers are told
  /// of both, added up.
  int earlier_restarts = 0;
  /// How many worlds with this restart count came before: membership changes.
  int world_of_attempt = 0;
  /// Endpoint of this generation's store. Empty and 0 in a prepare order; filled in by the commit
  /// order.
  std::string master_addr;
  int master_port = 0;
  /// Random name of the launch: equal on all nodes and in all generations of one launch, another
  /// in the next. Part of FSDPRUN_JOB_ID.
  std::string launch_id;
};

/// Name of the log directory of a world, unique in a launch: `attempt_<restart count>` as torchrun
/// names it; `attempt_<restart count>.<n>` after the n-th membership change with that count.
inline std::string AttemptName(const RankAssignment& assignment) {
  const std::string name = "attempt_" + std::to_string(assignment.restart_count);
  return assignment.world_of_attempt == 0
             ? name
             : name + "." + std::to_string(assignment.world_of_attempt);
}

/// Where group rank 0 serves the store of a generation.
struct StoreEndpoint {
  std::string address;
  int port = 0;
};

/// How one worker process ended. The executor fills in what the kernel and the files say;
/// NodeMachine adds `rank`, `last_step`, `after_stop`, `killed_by_us` and `failed_before_stop`.
struct WorkerExit {
  int local_rank = 0;
  int rank = 0;
  int64_t pid = 0;
  /// Exit code; meaningful when `signal` is 0.
  int exit_code = 0;
  /// Signal that ended the process, or 0 if it exited by itself.
  int signal = 0;
  /// `signal` made the kernel write a core dump.
  bool dumped_core = false;
  /// A stop signal of ours had been sent to the worker before it ended.
  bool after_stop = false;
  /// `signal` is one that we had sent before the worker ended: the death is our doing.
  bool killed_by_us = false;
  /// For `after_stop`: the worker had written its error file before the stop signal was sent, and
  /// was on its way out.
  bool failed_before_stop = false;
  /// From the worker's error file; empty if it wrote none.
  std::string error_message;
  std::string traceback;
  /// Raw contents of the error file (bounded by the reader), for passing on to a parent launcher's
  /// error file.
  std::string error_json;
  /// Unix time of the failure, where the error file says it. For display only.
  std::optional<int64_t> error_timestamp_s;
  /// The last lines the worker wrote to standard error, oldest first.
  std::vector<std::string> stderr_tail;
  /// Last training step the worker reported, or -1.
  int64_t last_step = -1;
  /// File with the worker's output on its node; empty if output was not captured.
  std::string log_path;
  /// Wall clock of the node when the exit was seen, in nanoseconds since 1970. For display only,
  /// never compared.
  int64_t exited_unix_ns = 0;

  bool Succeeded() const { return signal == 0 && exit_code == 0; }
};

/// The worker ended because it was stopped, and what it has said explains nothing: thousands of
/// such ends are only counted. Not one that was failing before, nor one that exhausted memory may
/// have killed, nor an exit that ends the job (`permanent`).
inline bool IsEndByStop(const WorkerExit& exit, bool is_permanent) {
  constexpr int kKill = 9;
  constexpr int kBus = 7;
  const bool may_be_memory = exit.signal == kKill || exit.signal == kBus;
  return exit.after_stop && !exit.failed_before_stop && !is_permanent &&
         (exit.killed_by_us || !may_be_memory);
}

/// "rank 3 exited with 1", "rank 3 died of signal 11"; for a worker that did not succeed.
inline std::string DescribeExit(const WorkerExit& exit) {
  return "rank " + std::to_string(exit.rank) +
         (exit.signal != 0 ? " died of signal " + std::to_string(exit.signal)
                           : " exited with " + std::to_string(exit.exit_code));
}

/// What a node has to say about training progress. -1 and "" mean "not reported".
struct Progress {
  int64_t step = -1;
  int64_t total = -1;
  /// One line of metrics from rank 0.
  std::string text;
};

/// Why a generation, or the job, failed.
enum class CauseKind {
  kWorkerFailed,   // a worker exited non-zero or died of a signal that we did not send
  kNodeLost,       // a node's stream broke and stayed broken, or it fell silent
  kKeeperDied,     // the parent process of a node's workers died, and the workers with it
  kPrepareFailed,  // a node could not set up logs or the store
  kSpawnFailed,    // a node could not start a worker process
  kNodeWedged,     // processes of a node outlived SIGKILL
  kNodeStuck,      // a node did not answer an order before the order's deadline
  kJoinTimeout,    // too few nodes joined
  kCannotStart,    // a node cannot run the program of its command line at all
  kWorkerHung,     // a world did not get on: because of a worker of this node, or nobody knows
};

/// One failure, on one node, as the coordinator received it.
struct Failure {
  CauseKind kind = CauseKind::kWorkerFailed;
  Generation generation;
  std::string node_name;
  std::string node_address;
  int group_rank = -1;
  /// Set for kWorkerFailed.
  std::optional<WorkerExit> worker;
  /// A sentence for an operator: what was attempted, on what, what happened.
  std::string what;
};

/// The failures of the last generation, with the root cause picked out.
struct FailureReport {
  Failure root;
  /// Further failures in receive order, root cause excluded; at most kMaxOtherFailures are kept.
  std::vector<Failure> others;
  /// All further failures, also those not kept in `others`.
  int other_failures = 0;
  /// Workers that died because we stopped them.
  int collateral = 0;
};
inline constexpr int kMaxOtherFailures = 32;

enum class OutcomeKind { kSucceeded, kFailed, kStoppedBySignal };

/// How the workers of one world have ended, as far as it was told.
struct WorkerEnds {
  int workers = 0;
  /// With 0, of themselves or once they were stopped.
  int well = 0;
  /// By our SIGKILL: their time to end was over.
  int killed = 0;
  /// In any other way. Who is in none of the three was lost with its node.
  int failed = 0;
  /// A sentence for each of the first kMaxEndNotes that were killed or have failed.
  std::vector<std::string> notes;

  bool AllWell() const { return workers > 0 && well == workers; }
  bool operator==(const WorkerEnds&) const = default;
};
inline constexpr size_t kMaxEndNotes = 4;

/// How the job ended.
struct JobOutcome {
  OutcomeKind kind = OutcomeKind::kSucceeded;
  /// Exit code for the launcher.
  int exit_code = 0;
  /// The operator's signal, for kStoppedBySignal.
  int signal = 0;
  /// A second signal ended the workers' grace.
  bool grace_cut_short = false;
  /// One sentence for an operator.
  std::string reason;
  int restarts_used = 0;
  int max_restarts = 0;
  Generation generation;
  /// Of the last world; port 0 if there was none.
  StoreEndpoint store;
  /// Of the last world; without workers if there was none.
  WorkerEnds ends;
  /// A sentence about each node that was left out at the end, because it kept failing.
  std::vector<std::string> left_out;
  /// Set for kFailed; may be set for kStoppedBySignal if a failure came first.
  std::optional<FailureReport> failure;
};

}  // namespace fsdprun
