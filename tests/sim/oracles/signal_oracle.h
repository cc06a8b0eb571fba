#pragma once

// Whether the job ends for a signal that its agents tell of. A scheduler that has given a job its
// nodes signals all of their agents, one after the other, to end it. A node that is shut down gets
// the same signal: it leaves, and the others go on.
//
// Note [Signals to an allocation]
// 1. The job ends as stopped by a signal that agents tell of only if no node of the allocation is
//    there for certain that nobody signalled. Before the first world others may be on their way:
//    then all nodes of the allocation have to tell, each within the spread of the one before.
// 2. It must end so if all nodes of the allocation have told that the coordinator has a connection
//    to; those that fell silent within the spread count no more once they are certainly given up.
// 3. If it must, it ends in the time that one stop takes, and forms no other world. If it may not,
//    RecoveryOracle sees to it that the others go on.
// Notices (SIGUSR1, SIGUSR2) are schedulers' alone: one is enough. The coordinator's own signal is
// OutcomeOracle's matter.
//
// Its questions are jobs that were told of signals and whose end was certain then.

#include <map>
#include <optional>
#include <set>

#include "proto/cluster/messages.h"
#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class SignalOracle : public Oracle {
 public:
  struct Job {
    /// The nodes that are signalled together; if there are none, nothing is judged.
    std::set<int> allocation;
    /// See JobSpec::signal_spread.
    Nanos spread = 0;
    /// Within which a node that is not heard of is lost, and is so for certain.
    Nanos lease = 0;
    Nanos longest_lease = 0;
    /// What a stop may take.
    Nanos stop = 0;
  };

  explicit SignalOracle(Job job) : job_(std::move(job)) {}

  // Nodes.
  void AgentStarted(int node) { nodes_[node] = {}; }
  void AgentGone(Nanos at, int node);
  /// Somebody has signalled the agent.
  void AgentLeaves(int node) { nodes_[node].is_signalled = true; }
  /// Until then the node may not be heard of.
  void Disturbed(Nanos at, int node, Nanos until);
  /// Until then it is not.
  void Paused(Nanos at, int node, Nanos until);
  void CoordinatorPaused(Nanos at, Nanos until);

  // What the coordinator hears and says.
  void Admitted(int node, Incarnation agent);
  void Dismissed(Nanos at, Incarnation agent);
  void StreamLost(Nanos at, Incarnation agent);
  void LeftHeard(Nanos at, Incarnation agent, const AgentLeft& left);
  void WorldOrdered();
  /// All orders of one step of the coordinator have been given.
  void OrdersGiven(Nanos at);
  /// The coordinator's own signal came before the end was decided.
  void StopHeard() { stop_heard_ = true; }
  void Decided(Nanos at, const JobOutcome& outcome);
  /// What agents told of may have been a signal to all.
  bool MayStop() const { return may_stop_; }

 private:
  /// What happens to the latest agent of a node.
  struct Node {
    Incarnation agent;
    bool is_signalled = false;
    bool is_gone = false;
    /// From when until when something may keep it from being heard, or does; 0: nothing yet.
    Nanos disturbed_from = 0;
    Nanos disturbed_until = 0;
    Nanos paused_from = 0;
    Nanos paused_until = 0;
  };
  /// What the coordinator knows of an agent that it has admitted.
  struct Seat {
    int node = 0;
    bool is_connected = true;
    bool has_told = false;
    Nanos left_at = kForever;
    Nanos stream_lost_at = kForever;
    Nanos gone_at = kForever;
    Nanos dismissed_at = kForever;
  };

  bool IsInAllocation(int node) const { return job_.allocation.count(node) != 0; }
  const Node* AgentOf(Incarnation agent, const Seat& seat) const;
  bool MayBeGivenUp(const Node& node, Nanos at) const;
  bool IsGivenUp(Incarnation agent, const Seat& seat, Nanos at) const;
  bool IsThere(Incarnation agent, const Seat& seat, Nanos at) const;
  /// All who have to tell before the first world have.
  bool IsComplete(const std::set<int>& told) const;
  void CheckMay(Nanos at);
  void CheckMust(Nanos at);
  bool CountsNoMore(Incarnation agent, const Seat& seat, Nanos at) const;

  const Job job_;
  std::map<int, Node> nodes_;
  std::map<Incarnation, Seat> seats_;
  Nanos coordinator_resumes_at_ = 0;
  bool has_world_ = false;
  bool stop_heard_ = false;
  /// Nodes that have told, each within the spread of the one before, and the time of the latest.
  std::set<int> told_;
  Nanos told_at_ = -kForever;
  /// Those of them, and the time, of which it is certain that the coordinator knew the agent.
  std::set<int> surely_told_;
  Nanos surely_told_at_ = -kForever;
  bool notice_surely_told_ = false;
  bool may_stop_ = false;
  Nanos must_stop_since_ = kForever;
  /// A node that was there without a signal when it was last asked.
  std::optional<int> bystander_;
};

}  // namespace fsdprun::sim
