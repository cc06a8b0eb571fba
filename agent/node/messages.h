#pragma once

// The conversation between an agent and the coordinator, as values. The gRPC layer only encodes and
// decodes these; the simulator passes them through the same codec.
//
// Note [Fencing by generation]
// Every message carries the incarnation of the agent and the generation it is about. A message
// about another generation than the receiver's current one is stale: it is dropped and counted. A
// message from an unknown incarnation (other than AgentJoined) is dropped and counted, too. A node
// acknowledges generations in rising order only, and has nothing left of g when it acknowledges g
// + 1.
//
// Note [Lost messages]
// A stream delivers in order and at most once; what was in flight when it breaks is lost. Nothing
// is acknowledged singly: when the agent is back on a new stream, it sends AgentJoined and then
// once more everything it has reported about its current generation, and the coordinator repeats
// the orders that are still open. Receiving twice is harmless.

#include <optional>
#include <string>
#include <variant>

#include "agent/node/cluster_types.h"
#include "base/mono_time.h"

namespace fsdprun {

// --- Agent -> coordinator

/// First message on every stream. The envelope's generation is the one the agent holds (0 if none).
struct AgentJoined {
  NodeInfo node;
  /// The highest generation the agent has ever acknowledged.
  Generation highest_seen;
};
/// Sign of life, every NodeSpec::beat_interval.
struct AgentBeat {
  Progress progress;
};
/// Ready to start the workers of the envelope's generation.
struct AgentPrepared {
  /// Set if and only if the agent has group rank 0.
  std::optional<StoreEndpoint> store;
};
/// All workers of the envelope's generation have been started.
struct AgentStarted {};
/// One worker of the envelope's generation ended.
struct WorkerExited {
  WorkerExit exit;
};
/// The node as a whole failed in the envelope's generation: kKeeperDied, kPrepareFailed,
/// kSpawnFailed or kNodeWedged.
struct NodeFaulted {
  CauseKind kind = CauseKind::kKeeperDied;
  std::string what;
};
/// Nothing of the envelope's generation is left on the node.
struct WorkersStopped {};
/// The agent leaves on its own: an operator's signal on that node, or the answer to ReleaseAgent.
struct AgentLeft {
  /// The operator's signal, or 0.
  int signal = 0;
  /// Workers are still being stopped; a second AgentLeft follows when they are gone.
  bool workers_running = false;
};

using AgentMessage = std::variant<AgentBeat, AgentJoined, AgentPrepared, AgentStarted, WorkerExited,
                                  NodeFaulted, WorkersStopped, AgentLeft>;

/// Envelope of everything an agent says.
struct FromAgent {
  Incarnation incarnation;
  Generation generation;
  AgentMessage message;
};

// --- Coordinator -> agent

/// Answer to AgentJoined.
struct AdmitAgent {};
/// Answer to AgentJoined: the agent can never be part of this job; it exits with 1 and shows
/// `reason`. With `rejoin` it is the answer to anything else from an agent that has been given up:
/// it introduces itself anew with AgentJoined.
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
/// Stop what runs of the envelope's generation: `signal`, then SIGKILL after `grace`; answer
/// WorkersStopped. A repeated order may shorten the grace, never lengthen it.
struct StopWorkers {
  int signal = 15;
  Duration grace{};
  std::string reason;
};
/// The job is over for this agent: end whatever is left and exit with `exit_code`.
struct ReleaseAgent {
  int exit_code = 0;
  std::string reason;
};

using CoordinatorMessage = std::variant<AdmitAgent, RejectAgent, PrepareGeneration,
                                        CommitGeneration, StopWorkers, ReleaseAgent>;

/// Envelope of everything the coordinator says. AdmitAgent, RejectAgent and ReleaseAgent carry
/// generation 0.
struct ToAgent {
  Incarnation incarnation;
  Generation generation;
  CoordinatorMessage message;
};

}  // namespace fsdprun
