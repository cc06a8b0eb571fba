#pragma once

// The messages between an agent and the coordinator, as values. The gRPC layer only encodes and
// decodes these; the simulator passes them through the same codec.
//
// Note [Fencing by generation]
// Every message carries the incarnation of the agent and the generation it is about. A message
// about another generation than the receiver's current one is stale: it is dropped and counted. A
// message from an unknown incarnation (other than AgentJoined) is dropped and counted, too. A node
// acknowledges generations in increasing order only, and no process of g is left when it
// acknowledges g + 1.
//
// Note [Lost messages]
// A stream delivers in order and at most once; what was in flight when it breaks is lost. Nothing
// is acknowledged individually: on a new stream the agent sends AgentJoined and then repeats
// everything it has reported about its current generation, and the coordinator repeats the orders
// that are still open. Messages are idempotent.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/mono_time.h"
#include "proto/cluster/build_info.h"
#include "proto/cluster/types.h"

namespace fsdprun {

// --- Agent -> coordinator

/// First message on every stream. The envelope's generation is the one the agent currently holds (0
/// if none).
struct AgentJoined {
  NodeInfo node;
  /// The highest generation the agent has ever acknowledged.
  Generation highest_seen;
  /// Why this node can never start a worker (its program is missing); empty if it can.
  std::string cannot_run;
  BuildInfo build{};
};
/// Renews the node's lease; sent every NodeSpec::heartbeat_interval.
struct AgentHeartbeat {
  Progress progress;
  /// HeartbeatHeard is to answer it.
  bool asks = false;
};
/// Ready to start the workers of the envelope's generation.
struct AgentPrepared {
  /// Set if and only if the agent has group rank 0.
  std::optional<StoreEndpoint> store;
};
/// All workers of the envelope's generation have been started.
struct AgentStarted {};
/// One worker of the envelope's generation ended.
//
// Note [Age of an event]
// A report says how long before it was sent the event happened, so that the coordinator can order
// events of several nodes without comparing their clocks. A repeated report has a new age. The time
// on the wire is not part of it.
struct WorkerExited {
  WorkerExit exit;
  /// Since the worker failed: since it wrote its error file, or else since it ended.
  Duration age{};
};
/// Workers of the envelope's generation ended because they were stopped: see IsEndByStop(). All
/// that have since the last such message; what they have said is left out.
struct WorkersEnded {
  std::vector<WorkerExit> exits;
};
/// The node as a whole failed in the envelope's generation: kKeeperDied, kPrepareFailed,
/// kSpawnFailed or kNodeWedged.
struct NodeFaulted {
  CauseKind kind = CauseKind::kKeeperDied;
  std::string what;
  Duration age{};
};
/// No process of the envelope's generation is left on the node.
struct WorkersStopped {};
/// The agent leaves: after an operator's signal on that node, or in answer to ReleaseAgent.
struct AgentLeft {
  /// The operator's signal, or 0.
  int signal = 0;
  /// Workers are still being stopped; a second AgentLeft follows when they are gone.
  bool workers_running = false;
};

using AgentMessage =
    std::variant<AgentHeartbeat, AgentJoined, AgentPrepared, AgentStarted, WorkerExited,
                 NodeFaulted, WorkersStopped, AgentLeft, WorkersEnded>;

/// Envelope of every message from an agent.
struct FromAgent {
  Incarnation incarnation;
  Generation generation;
  AgentMessage message;
};

// --- Coordinator -> agent

/// What a launcher's command line says about the job as a whole; the coordinator's counts.
struct JobTerms {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  Duration join_timeout{};
  Duration last_call{};
};
/// Answer to AgentJoined.
struct AdmitAgent {
  /// The job's, from which this agent's clocks follow whatever its own command line says; zero: not
  /// told.
  Duration node_lease{};
  /// For a launcher whose own command line may say otherwise; empty: not told.
  std::optional<JobTerms> terms{};
  BuildInfo build{};
  /// Another coordinator may take the job over at the same address, so that the agent waits for it
  /// even while nothing listens there.
  bool may_be_taken_over = false;
};
/// Answer to AgentJoined: the agent can never be part of this job; it prints `reason` and exits
/// with 1. With `rejoin` it answers any other message of an agent that was declared lost: the agent
/// joins again with AgentJoined.
struct RejectAgent {
  std::string reason;
  bool rejoin = false;
};
/// First phase: set up logs and (group rank 0) a fresh store for `assignment.generation`; answer
/// AgentPrepared.
struct PrepareGeneration {
  RankAssignment assignment;
};
/// Second phase: all members are prepared; start the workers with this store endpoint.
struct CommitGeneration {
  StoreEndpoint store;
};
/// Stop the workers of the envelope's generation: `signal`, then SIGKILL after `grace`; answer
/// WorkersStopped. A repeated order may shorten the grace, never extend it.
struct StopWorkers {
  int signal = 15;
  Duration grace{};
  std::string reason;
};
/// The job is over, at least for this agent: kill what is left and exit with `exit_code`.
struct ReleaseAgent {
  int exit_code = 0;
  std::string reason;
  /// The workers could not end by themselves, well or badly.
  bool cut_off = false;
  /// Only this agent's part is over, because the node is of no use to the job.
  bool job_goes_on = false;
};
/// Pass `signal` on to the workers of the envelope's generation, as node::NotifyWorkers does; the
/// job goes on. Not repeated on a new stream: it is about a moment.
struct PassSignal {
  int signal = 10;
};

/// The answer to a heartbeat that asks.
struct HeartbeatHeard {};

/// This agent's node is left out of worlds as long as others are enough, and is a spare meanwhile.
/// Repeated on each new stream. For its operator.
struct LeftOut {
  /// A sentence; empty: it is left out no longer.
  std::string why;
};

using CoordinatorMessage =
    std::variant<AdmitAgent, RejectAgent, PrepareGeneration, CommitGeneration, StopWorkers,
                 ReleaseAgent, PassSignal, HeartbeatHeard, LeftOut>;

/// Envelope of every message from the coordinator. AdmitAgent, RejectAgent, ReleaseAgent,
/// HeartbeatHeard and LeftOut carry generation 0.
struct ToAgent {
  Incarnation incarnation;
  Generation generation;
  CoordinatorMessage message;
};

}  // namespace fsdprun
