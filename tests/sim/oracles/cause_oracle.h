#pragma once

// Who is blamed: the root cause in a failure report is an injected fault, never a victim; and no
// node is given up as stuck for which nothing was injected.
//
// Note [When a victim may be named]
// The coordinator can only name what it was told. A process that failed of a lost peer may stand as
// the root cause only if, when the report was made, the coordinator had no way to know its culprit:
// 1. no usable notice of the culprit's end had reached it: the node was cut off, or the notice came
//    after the node had been told to stop, when an exit (other than by SIGKILL or SIGBUS) cannot be
//    told from one that the stop caused;
// 2. the culprit or the victim exited with a plain code and without an error message, and by what
//    the coordinator was told the victim failed first: then nothing but the times tells the two
//    apart, and the time that a notice was on the wire is part of none;
// 3. the culprit is a lost node or a dead keeper, which seemed to be lost only after the victim's
//    notice came, because the node's link was disturbed.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "proto/cluster/types.h"
#include "tests/sim/oracles/fault_ledger.h"

namespace fsdprun::sim {

class CauseOracle : public Oracle {
 public:
  /// `stuck_bound`: how long after its end a fault that holds a node up may be why the node is
  /// given up. `ledger` outlives the oracle.
  CauseOracle(const FaultLedger& ledger, Nanos stuck_bound)
      : ledger_(ledger), stuck_bound_(stuck_bound) {}

  /// The coordinator was told how a worker ended, and took from that that it failed at `failed_at`.
  void ExitHeard(const WorkerExit& exit, Nanos failed_at);
  /// The coordinator was told by node `node_name` that it failed as a whole in generation `g`.
  void NodeFaultHeard(const std::string& node_name, Generation g);
  /// A coordinator that takes over has heard only what agents tell again.
  void CoordinatorRestarted() {
    heard_pids_.clear();
    heard_nodes_.clear();
  }
  void Decided(const JobOutcome& outcome);
  /// The coordinator dismissed a node, whose stream stands, before the job's end was decided.
  void GivenUp(Nanos at, int node, const std::string& reason);
  /// The coordinator told a node to go, or an operator did.
  void ToldToGo(int node) { told_to_go_.insert(node); }
  void AgentStarted(int node) { told_to_go_.erase(node); }
  /// An agent that had been admitted exits on its own, before the job's end was decided.
  void AgentExited(Nanos at, int node, int exit_code);

 private:
  bool MayBeStuck(Nanos at, int node) const;
  /// `root` is what `fault` looks like in a report.
  static bool Matches(const Failure& root, const InjectedFault& fault);
  bool MayNameVictim(int64_t victim, const InjectedFault& culprit) const;

  struct Word {
    /// When it failed; of those that failed at the same time, which was heard first.
    std::pair<Nanos, size_t> order;
    /// A plain exit without an error.
    bool is_silent = false;
  };

  const FaultLedger& ledger_;
  const Nanos stuck_bound_;
  std::map<int64_t, Word> heard_pids_;
  std::set<std::pair<std::string, Generation>> heard_nodes_;
  std::set<int> told_to_go_;
};

}  // namespace fsdprun::sim
