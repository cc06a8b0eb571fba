#pragma once

// How the job must end, and what it may charge for: computed from what was injected, not from what
// the machine counts.
//
// Note [Legitimate ends]
// Once faults have stopped, the job has until its deadline to do all its work; then it must have
// succeeded, unless it ended before for one of these reasons:
// 1. an operator's signal reached it, or a scheduler's (see Note [Signals to an allocation]);
// 2. a worker exited with the code for a configuration that cannot work;
// 3. its restart budget is spent: the world that failed last was the last one that the budget
//    allows, and each of the worlds charged before had a fault of its own;
// 4. for the whole join timeout fewer nodes were there than a world needs;
// 5. the coordinator's process died;
// 6. a node could not run the program, and there had been no world yet;
// 7. another launcher had become its host.

#include <map>
#include <set>

#include "proto/cluster/types.h"
#include "tests/sim/oracles/fault_ledger.h"

namespace fsdprun::sim {

class OutcomeOracle : public Oracle {
 public:
  struct Job {
    int min_nodes = 1;
    int max_restarts = 0;
    Nanos join_timeout = 0;
  };

  /// `ledger` outlives the oracle and is told of an event before the oracle.
  OutcomeOracle(const FaultLedger& ledger, Job job) : ledger_(ledger), job_(job) {}

  /// The `world_size` workers of `g` are told that `restart_count` restarts came before; only the
  /// first call for a generation counts.
  void WorldOrdered(Generation g, int restart_count, int world_size);
  void StopOrdered(Generation g);
  void RankStarted(Generation g, int rank);
  /// `rank` of `g` did all its work and exited with 0.
  void RankFinished(Generation g, int rank);
  /// An agent runs at a place in the world; those that ask for the same rank share one place.
  void NodeArrived(int place);
  void NodeGone(Nanos at, int place);
  /// An operator has changed how many nodes a world needs.
  void Scaled(Nanos at, int min_nodes);
  /// An operator's signal reached the coordinator before the end was decided.
  void StopHeard() { stop_heard_ = true; }
  /// What agents told of may be a signal for the whole job.
  void StopExplained() { stop_explained_ = true; }
  void ProgramIsMissing() { program_is_missing_ = true; }
  void PlaceTaken() { place_is_taken_ = true; }
  void CoordinatorDied() { coordinator_died_ = true; }
  void Decided(Nanos at, const JobOutcome& outcome);
  /// The job has ended, or its last world runs: each of its ranks was started, and nobody has been
  /// told to stop.
  bool IsSettled() const;
  /// By now the job must be settled; by now it must have ended.
  void SettlingTimePassed();
  void DeadlinePassed(Nanos at);

 private:
  void CheckSuccess(const JobOutcome& outcome);
  void CheckFailure(Nanos at, const JobOutcome& outcome);
  void CheckCharge(Generation g, bool charged);
  bool HadConfigExit(Generation g) const;

  const FaultLedger& ledger_;
  Job job_;
  Generation last_;
  int last_restart_count_ = 0;
  int last_world_size_ = 0;
  std::set<int> last_started_;
  bool last_stopped_ = false;
  std::map<Generation, std::set<int>> finished_;
  /// Agents at each place that has any.
  std::map<int, int> nodes_;
  /// Since when there have been too few nodes.
  Nanos too_few_since_ = 0;
  bool stop_heard_ = false;
  bool stop_explained_ = false;
  bool coordinator_died_ = false;
  bool program_is_missing_ = false;
  bool place_is_taken_ = false;
  bool decided_ = false;
};

}  // namespace fsdprun::sim
