#pragma once

// What goes into a JobMachine and what comes out of it: one value for each step. Values only.

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/effects.h"
#include "base/mono_time.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/coordinator/quarantine.h"
#include "launcher/coordinator/recovery_policy.h"
#include "proto/cluster/messages.h"
#include "proto/cluster/types.h"

namespace fsdprun::job {

// --- Events: FromAgent, and these

/// The agent's current stream broke. Not to be sent for a stream that the agent has already
/// replaced by a newer one.
struct AgentStreamLost {
  Incarnation incarnation;
};
/// The agent's process has ended, so that it does not come again: it shared it with a coordinator
/// before this one.
struct AgentDied {
  Incarnation incarnation;
};
/// Whoever starts the agent of the node, and another one in its place, does so no more. The node is
/// lost once its stream breaks.
struct NoSuccessor {
  std::string node_name;
};
/// A signal for the whole job. A second one ends the grace at once.
struct OperatorStop {
  int signal = 15;
};
/// Another launcher has become the host of the job, because this one was silent for so long: no
/// world may be formed here any more; one that runs goes on. `why` is a sentence for an operator.
/// May come unasked.
struct HostReplaced {
  std::string why;
};
/// The answer to PlaceAsked: from that time on no other launcher can become the host of the job for
/// JobSpec::place_sure_for.
struct PlaceChecked {
  MonoTime at;
};
/// It cannot be found out, for a reason that an operator is told. PlaceAsked is still to be
/// answered. Unasked: what was found before is of no use any more.
struct PlaceUnknown {
  std::string why;
};
/// A signal for all workers of the running world; the job goes on.
struct SignalForWorkers {
  int signal = 10;
};
/// An operator wants all workers of the present world to be stopped, with their grace, and started
/// again in another one, free of charge. Nothing happens where there is none, or it is stopping.
struct RestartAsked {};
/// The world of the generation does not get on, for `lasted` now: it is stopped, which is charged
/// as a failure. Nothing happens unless it is the one that runs.
struct WorldHangs {
  Generation generation;
  /// Because of this worker; -1: nobody knows, and no node is to blame.
  int rank = -1;
  Duration lasted{};
  /// A sentence without its full stop.
  std::string what;
};
/// An operator takes a node out of the job: its workers are stopped with their grace and the others
/// form a world without it, free of charge; its agent is released, and never admitted again. That
/// enough others are there is for who asks to find out, see JobMachine::NodesWithout(). Nothing
/// happens where the node leaves already, or JobMachine::WhyFixed() says why.
struct DrainAsked {
  Incarnation incarnation;
};
/// An operator changes how many nodes the job needs and takes. More members than `max_nodes` are
/// too many: the world is stopped, with the workers' grace, and formed anew, free of charge. A
/// world that runs with fewer than `min_nodes` goes on; the next one needs them. Nothing happens
/// unless 1 <= min_nodes <= max_nodes, where ranks bind, or where JobMachine::WhyFixed() says why.
struct ScaleAsked {
  int min_nodes = 1;
  int max_nodes = 1;
};
/// The timer of `wake_at` has expired.
struct TimerDue {};

using Event = std::variant<TimerDue, FromAgent, AgentStreamLost, AgentDied, NoSuccessor,
                           OperatorStop, HostReplaced, PlaceChecked, PlaceUnknown, SignalForWorkers,
                           RestartAsked, DrainAsked, ScaleAsked, WorldHangs>;

// --- Effects of one step

/// To be done for the machine: find out whether another launcher has become the host of the job,
/// and go on until it is known. Then PlaceChecked or HostReplaced is to follow, unless
/// JobMachine::awaits_place() is false by then. Not repeated before.
struct PlaceAsked {};

// What has happened, for whoever watches the job.

/// The coordinator itself had not run for this long, or longer.
struct Stalled {
  Duration lateness{};
};
/// For the operator.
struct Warned {
  std::string text;
};
struct NodeJoined {
  NodeInfo node;
};
/// `what` is a clause that says why, such as "was silent for 3.0 s".
struct NodeLost {
  std::string name;
  std::string what;
};
/// The first to fail again and again: it is left out of worlds as long as others are enough.
struct NodeQuarantined {
  QuarantinedNode node;
  Duration window{};
  /// How long, unless it ends before.
  Duration length{};
  /// A sentence.
  std::string why;
};
/// It is left out no longer: a clause says why.
struct QuarantineLifted {
  QuarantinedNode node;
  std::string why;
};
/// It has a part in the next world all the same, because there are too few others.
struct QuarantineWaived {
  QuarantinedNode node;
  std::string why;
};
/// An operator takes the node out of the job.
struct NodeDraining {
  NodeInfo node;
  /// In the present world; -1 if it has no part in it.
  int group_rank = -1;
};
/// It is gone.
struct NodeDrained {
  NodeInfo node;
};
/// An operator has changed how many nodes the job needs and takes.
struct JobScaled {
  NodeLimits limits;
  NodeLimits before;
};
struct WorldFormed {
  Generation generation;
  int nodes = 0;
  int workers = 0;
};
/// Its workers are to be started.
struct WorldCommitted {
  Generation generation;
  StoreEndpoint store;
};
/// A worker or a node has failed. Several may, of one cause: which of them is the root is known
/// once the world has stopped.
struct FailureReported {
  Failure failure;
  /// Since it began, as far as the coordinator can tell: see FailureLog::Add().
  Duration age{};
};
struct WorldStopping {
  Generation generation;
  StopKind kind = StopKind::kMembership;
  std::string why;
};
/// No process of it is left.
struct WorldStopped {
  Generation generation;
  /// Of all its failures the one that is the root cause, see FailureReport; unset: none has failed.
  std::optional<CauseKind> root{};
};
/// The job is over and all agents have left or timed out. The last news; every later event is only
/// answered by a release.
struct JobFinished {
  JobOutcome outcome;
};

using News =
    std::variant<Stalled, Warned, NodeJoined, NodeLost, WorldFormed, WorldCommitted,
                 FailureReported, WorldStopping, WorldStopped, JobFinished, NodeQuarantined,
                 QuarantineLifted, QuarantineWaived, NodeDraining, NodeDrained, JobScaled>;

using Effects = fsdprun::Effects<Record, ToAgent, PlaceAsked, News>;

enum class Phase {
  kRendezvous,  // waits for nodes
  kPreparing,   // members set up logs and store
  kRunning,     // committed: workers start or run
  kStopping,    // waits until no process of the generation is left
  kReleasing,   // outcome decided; waits for the agents to leave
  kFinished,
};
std::string_view PhaseName(Phase phase);

/// A stop that is in progress. `why` is valid until the next Step.
struct StopStatus {
  struct Node {
    std::string name;
    /// Whose end it has not reported.
    int workers = 0;
  };
  Generation generation;
  /// An operator has asked for it, or for the job's end meanwhile: the next signal ends the grace.
  int operator_signal = 0;
  bool is_after_failure = false;
  std::string_view why;
  Duration grace{};
  /// When what is still running is killed.
  MonoTime kill_at{};
  /// The nodes that have not stopped.
  std::vector<Node> left;
};

}  // namespace fsdprun::job
