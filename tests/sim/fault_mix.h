#pragma once

// What goes wrong in a simulated run, and what kind of job it happens to.

#include <map>
#include <string>

#include "base/mono_time.h"
#include "proto/cluster/clocks.h"
#include "tests/sim/virtual_time.h"

namespace fsdprun::sim {

enum class FaultKind {
  kKillWorker,        // SIGKILL or a plain exit of one worker; its peers may fail of it
  kHangOnTerm,        // a worker that ignores SIGTERM from now on
  kKillAgent,         // SIGKILL of an agent; a new incarnation comes later
  kPowerOff,          // a node vanishes without closing its stream; a new incarnation comes later
  kKillKeeper,        // the parent of a node's workers dies
  kPartition,         // a node, or a third of all, is cut off in both directions
  kOneWayPartition,   // only one direction is cut
  kClog,              // a slow node: its messages take long
  kResetStream,       // a node's stream breaks and what was in flight is lost
  kPauseAgent,        // SIGSTOP of an agent, SIGCONT later
  kPauseCoordinator,  // the same for the coordinator
  kMassLeave,         // several agents get an operator's signal; new ones come later
  kDuplicateAgent,    // a second agent for a node that is alive
  kFailPrepare,       // the node's next preparation fails
  kOperatorStop,      // an operator's signal for the whole job, perhaps followed by a second one
  kConfigExit,        // a worker says that its configuration cannot work
  kHangPrepare,       // the node's next preparation never answers
  kFailSpawn,         // the node cannot start all workers of the next generation
  kUnkillableWorker,  // a worker in uninterruptible sleep: no signal has effect for a while
  kNoKeeper,          // the keeper dies, and for a while no new one can be started
  kScrapNode,         // a node vanishes for good
  kTakePlace,         // the host cannot look at its place for a while; another launcher may take it
  kKillCoordinator,   // the launcher that hosts the coordinator is killed, its agent with it
  kRestartCoordinator,  // the coordinator's own process is killed and started again
  kReplaceAgent,        // SIGKILL of an agent whose keeper waits; another one adopts the workers
  kHangWorker,          // a worker is stopped for good, and the watch tells the coordinator
  kAskForRestart,       // an operator asks for a restart of all workers
  kDrainNode,           // an operator drains a node, whose agent is started again later
  kScaleJob,            // an operator changes how many nodes the job needs and takes
  kSignalNodes,  // a scheduler signals all agents of its allocation, or some nodes are shut down
};

/// What a host says that was replaced.
inline constexpr const char* kPlaceTaken = "another launcher has become the host of the job";

struct FaultMix {
  std::string name;
  /// Relative frequency of each kind.
  std::map<FaultKind, double> weights;
  /// Mean virtual time between faults.
  double mean_gap_s = 5;
  /// Faults stop this long after the start; everything heals.
  double faults_for_s = 60;
  /// After healing, the job must be running or finished within this time; and `work_s` later it
  /// must have finished.
  double settle_s = 60;
  /// How long the workers of an undisturbed generation run before they exit with 0. 0 means: until
  /// the run ends.
  double work_s = 30;
  /// Chance that a message is delivered a second time, late.
  double duplicate = 0;
  /// Chance that a message other than a heartbeat is followed by a reset of its stream, so that it
  /// is often lost.
  double reset_per_message = 0;
  double max_delay_ms = 5;
  /// min_nodes = nodes * min_fraction, at least 1; spares join beyond max_nodes.
  double min_fraction = 1.0;
  /// This part of the faults hits the last node that is no spare: it is bad.
  double lemon = 0;
  /// Share of the coordinators' deaths that are those of a launcher which hosts it: its agent dies
  /// with it, and a standby goes on.
  double hosted = 0;
  /// See JobSpec.
  int quarantine_after = 0;
  double quarantine_window_s = 600;
  int spares = 0;
  /// The part of the nodes, spares included, that a scheduler has given to the job; see
  /// JobSpec::signalled_together. Not with two agents of one name or rank at a time.
  double allocated = 0;
  /// Chance that the nodes of a run ask for their ranks (--node-rank). Spares then ask for a rank
  /// that another node has.
  double static_ranks = 0;
  /// The same as a preference, with which nodes may ask for the same rank. Not with static_ranks.
  double preferred_ranks = 0;
  /// Chance that a node of the run lacks the program.
  double lacks_program = 0;
  int max_restarts = 1000;
  double restart_backoff_s = 0;
  double max_restart_backoff_s = 0;
  /// For so long everything is late, by at most as much: the machine is loaded.
  double loaded_for_s = 0;
  double late_s = 0;
  /// Agents start within this time.
  double start_within_s = 1;
  /// See JobSpec::place_sure_for.
  double place_sure_s = 0;
  /// 0: the default.
  double node_lease_s = 0;
  double stop_grace_s = 5;
  double prepare_timeout_s = 60;
  double join_timeout_s = 600;
  /// How long agents keep workers while the coordinator is silent.
  double coordinator_grace_s = 30;
};

inline Clocks ClocksOf(const FaultMix& mix) {
  return mix.node_lease_s > 0
             ? ClocksFor(std::chrono::milliseconds(static_cast<Nanos>(mix.node_lease_s * 1000)))
             : Clocks{};
}

inline Duration CoordinatorGrace(const FaultMix& mix) {
  return Duration(static_cast<Nanos>(mix.coordinator_grace_s * kSecond));
}

/// Reads a mix from a JSON file; on error returns a mix without a name and says why in `error`.
FaultMix LoadFaultMix(const std::string& path, std::string* error);

}  // namespace fsdprun::sim
