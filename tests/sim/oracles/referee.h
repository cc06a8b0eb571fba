#pragma once

// All oracles of a run behind one face: what happens is said once and reaches whom it concerns.

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "proto/cluster/messages.h"
#include "tests/sim/oracles/adoption_oracle.h"
#include "tests/sim/oracles/cause_oracle.h"
#include "tests/sim/oracles/current_world.h"
#include "tests/sim/oracles/fault_ledger.h"
#include "tests/sim/oracles/fence_oracle.h"
#include "tests/sim/oracles/hearing.h"
#include "tests/sim/oracles/load_oracle.h"
#include "tests/sim/oracles/operator_oracle.h"
#include "tests/sim/oracles/outcome_oracle.h"
#include "tests/sim/oracles/overlap_oracle.h"
#include "tests/sim/oracles/place_oracle.h"
#include "tests/sim/oracles/quarantine_oracle.h"
#include "tests/sim/oracles/recovery_oracle.h"
#include "tests/sim/oracles/shutdown_oracle.h"
#include "tests/sim/oracles/signal_oracle.h"
#include "tests/sim/oracles/stream_resets.h"

namespace fsdprun::sim {

class Referee {
 public:
  struct Bounds {
    /// Within which a node whose coordinator is silent has ended all, see OverlapOracle.
    Nanos alone = 0;
    /// Within which it has when the coordinator's process has ended, see ShutdownOracle.
    Nanos ended = 0;
    /// See CauseOracle.
    Nanos stuck = 0;
    /// See QuarantineOracle.
    int quarantine_after = 0;
    Nanos quarantine_window = 0;
    /// See PlaceOracle.
    Nanos place_sure = 0;
    /// See AdoptionOracle.
    Nanos adoption_lease = 0;
  };
  Referee(OutcomeOracle::Job job, RecoveryOracle::Job recovery, SignalOracle::Job signals,
          Bounds bounds);

  /// Empty, or what an oracle complains of.
  const std::string& complaint() const;
  /// How many questions the run put to each oracle.
  std::map<std::string, int> questions() const;
  FaultLedger& ledger() { return ledger_; }
  FenceOracle& fence() { return fence_; }
  LoadOracle& load() { return load_; }
  AdoptionOracle& adoption() { return adoption_; }
  OperatorOracle& operators() { return operator_; }
  const CurrentWorld& current_world() const { return current_world_; }

  // Nodes and links.
  void AgentStarted(Nanos at, int node, int place);
  void AgentDied(Nanos at, int node, int place, uint32_t life);
  void AgentExited(Nanos at, int node, int exit_code);
  void AgentLeaves(Nanos at, int node);
  void StreamOpened(Nanos at, int node);
  void StreamClosed(Nanos at, int node);
  /// Before the stream is closed for it.
  void StreamReset(const InjectedFault& fault) { resets_.Reset(fault); }
  void CutOff(Nanos at, int node, Nanos until);
  void SlowedDown(Nanos at, int node, Nanos until);
  void Paused(Nanos at, int node, Nanos until);
  void CoordinatorPaused(Nanos at, Nanos until);
  /// Killed at `at`; one that is started again has heard of all by `until`.
  void CoordinatorRestarted(Nanos at, Nanos until);
  void Healed(Nanos at);

  // Processes.
  void ProcessStarted(Nanos at, const ProcessSighting& process);
  void ProcessEnded(Nanos at, int64_t pid, int node);
  void BecameUnkillable(int64_t pid);
  void BecameKillable(int64_t pid);
  void RankStarted(Generation g, int rank) { outcome_.RankStarted(g, rank); }
  void RankFinished(Generation g, int rank) { outcome_.RankFinished(g, rank); }

  // The coordinator.
  /// `order` is meant for `node`.
  void OrderSent(Nanos at, int node, const ToAgent& order);
  /// All orders of one step of the coordinator have been sent.
  void OrdersGiven(Nanos at);
  /// The coordinator is about to read a report other than a heartbeat.
  void ReportArrives(Nanos at, int node, const FromAgent& report);
  /// The coordinator has read a report of a member of the newest world about that world.
  void ReportHeard(Nanos at, const std::string& node_name, const FromAgent& report);
  /// A node of this run cannot run the program.
  void ProgramIsMissing() { outcome_.ProgramIsMissing(); }
  /// See PlaceOracle.
  /// Found out at `at`, by a look that began at `looked_at`.
  void PlaceLookedUp(Nanos at, Nanos looked_at) {
    ledger_.PlaceFound(at);
    place_.LookedUp(looked_at);
  }
  /// Nobody can look until then.
  void PlaceOutOfReach(Nanos at, Nanos until) { recovery_.CoordinatorPaused(at, until); }
  /// Another launcher has become the host of the job.
  void PlaceTaken(Nanos at);
  /// The coordinator is about to hear what an operator wants of its nodes.
  void OperatorOrders(Nanos at) { ledger_.MembershipChanged(at); }
  /// `is_present`: the agent is the one that now runs on the node.
  void DrainOrdered(Nanos at, int node, Incarnation agent, bool is_present);
  void Scaled(Nanos at, int min_nodes, int max_nodes);
  void StopHeard() {
    outcome_.StopHeard();
    signals_.StopHeard();
  }
  /// The coordinator is about to read the end of the agent's stream.
  void StreamLossHeard(Nanos at, Incarnation agent);
  void GivenUp(Nanos at, int node, const std::string& reason) { cause_.GivenUp(at, node, reason); }
  void Decided(Nanos at, const JobOutcome& outcome);
  void CoordinatorDied(Nanos at);
  bool IsSettled() const { return outcome_.IsSettled(); }
  void SettlingTimePassed() { outcome_.SettlingTimePassed(); }
  void DeadlinePassed(Nanos at) { outcome_.DeadlinePassed(at); }

 private:
  FaultLedger ledger_;
  StreamResets resets_{ledger_};
  Hearing hearing_;
  OverlapOracle overlap_;
  FenceOracle fence_;
  LoadOracle load_;
  OutcomeOracle outcome_;
  CauseOracle cause_;
  ShutdownOracle shutdown_;
  RecoveryOracle recovery_;
  PlaceOracle place_;
  QuarantineOracle quarantine_;
  SignalOracle signals_;
  AdoptionOracle adoption_;
  OperatorOracle operator_;
  CurrentWorld current_world_;
  std::set<int64_t> unkillable_;
  /// The agent that was last heard of on each node.
  std::map<int, Incarnation> agents_;
  bool place_is_taken_ = false;
  /// The end was decided, or the coordinator died.
  bool has_ended_ = false;
};

}  // namespace fsdprun::sim
