#pragma once

// A job recovers without delay and with all the nodes it has.
//
// Note [Time to recover]
// All bounds are sums of configured times; what allows more is observed from outside.
// 1. Detection: a fault that breaks the running generation is followed by its stop within the lease
//    (or within the timeout of the preparation, if it is that which hangs). While the coordinator,
//    the node of the fault or its link is disturbed, the time does not count.
// 2. Reaction: the stop is over when every member has reported its workers stopped, and for those
//    that do not, after the grace and the margin of the order. Time for which the coordinator is
//    stopped does not count: what was due then lies unread. Then the job ends, or the next world is
//    ordered as soon as max_nodes nodes are ready, or a lease after min_nodes nodes are ready and
//    no other node is in trouble: the coordinator waits for one that may come back.
//
// Note [Size of a world]
// A node is ready for certain if it has been admitted on a stream that is open, owes no report that
// it has stopped, is not leaving, and nothing has disturbed it for long enough to be heard again.
// What the coordinator does with a node of which this is not certain is not judged. A world has all
// nodes that are ready, up to max_nodes; never fewer than min_nodes; and none that is long gone.
// One that was told that it is left out is in a world only if that has no more than min_nodes.

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/oracles/fault_ledger.h"

namespace fsdprun::sim {

class RecoveryOracle : public Oracle {
 public:
  struct Job {
    int min_nodes = 1;
    int max_nodes = 1;
    /// The longest between the stop signal and SIGKILL, and what a stop may take beyond.
    Nanos stop_grace = 0;
    Nanos stop_margin = 0;
    /// Within which a node that is not heard of is lost, an extension included.
    Nanos lease = 0;
    Nanos prepare_timeout = 0;
    /// How long the first world waits for more nodes than it needs.
    Nanos last_call = 0;
    /// The longest pause between a failed world and the next.
    Nanos restart_backoff = 0;
    /// How long it takes at most to look up whether the host still has its place: once for a stop
    /// or enough nodes, and again if that answer has become too old.
    Nanos place_looks = 0;
  };
  /// Until a heartbeat is heard again.
  static constexpr Nanos kHeardAgain = 1500 * kMilli;
  /// What messages and timers take.
  static constexpr Nanos kSlack = 1500 * kMilli;

  /// `ledger` outlives the oracle and is told of an event before the oracle.
  RecoveryOracle(const FaultLedger& ledger, Job job) : ledger_(ledger), job_(job) {}

  // Nodes.
  void AgentStarted(int node) { nodes_[node] = {}; }
  /// The agent of the node is no more, for whatever reason.
  void AgentGone(Nanos at, int node);
  void AgentLeaves(int node) { nodes_[node].is_leaving = true; }
  void StreamOpened(int node) { nodes_[node].has_stream = true; }
  void StreamClosed(Nanos at, int node);
  /// The node or its link is not as it should be until `until`.
  void Disturbed(Nanos at, int node, Nanos until);
  void CoordinatorPaused(Nanos at, Nanos until);
  /// An operator has changed how many nodes a world needs and takes.
  void Scaled(Nanos at, int min_nodes, int max_nodes);

  // Messages.
  void Admitted(Nanos at, int node);
  void Dismissed(int node) { nodes_[node].admitted_at = kForever; }
  /// The node reports on a new stream that it holds nothing, or that nothing of `g` is left.
  void JoinedIdle(Nanos at, int node);
  void StoppedHeard(Nanos at, int node, Generation g);
  void StopOrdered(Nanos at, int node, Generation g, Nanos grace);
  /// The agent that now runs on the node owes an answer to the stop of `g`.
  void ToldToStop(int node, Generation g) { nodes_[node].owes_stop = g; }
  /// `is_present`: the order is for the agent that now runs on the node, not for one before it.
  void WorldOrdered(int node, Generation g, bool is_present);
  void LeftOut(int node, bool is_left_out) { nodes_[node].is_left_out = is_left_out; }
  /// All orders of one step of the coordinator have been given.
  void OrdersGiven(Nanos at);
  /// The job failed because its last world did.
  void WorldFailedJob(Nanos at);

 private:
  struct Node {
    Nanos admitted_at = kForever;
    Nanos stopped_at = 0;
    Nanos disturbed_until = -kSecond * 3600;
    Nanos gone_at = kForever;
    Generation owes_stop;
    bool is_leaving = false;
    bool is_left_out = false;
    bool has_stream = false;

    Nanos ReadyAt() const;
  };
  struct Stop {
    Nanos ordered_at = kForever;
    Nanos grace = 0;
  };

  void Trouble(Nanos at, Nanos until);
  Nanos LastTrouble(Nanos at) const;
  Nanos CoordinatorResumed(Nanos at) const;
  /// For how long of the time the coordinator was stopped.
  Nanos PausedBetween(Nanos from, Nanos to) const;
  Nanos StopOverBy(Nanos at) const;
  /// Since when `count` nodes have been ready; kForever if there are not as many.
  Nanos ReadySince(int count, bool even_left_out) const;
  Nanos FormedBy(Nanos at) const;
  /// A preparation that hung until `at`: it begins anew if its keeper does.
  bool HungUntil(const InjectedFault& fault, Nanos at) const;
  Nanos DetectedBy(const InjectedFault& fault) const;
  void CheckDetection(Nanos at, Generation g);
  void CheckSize(Nanos at);
  void CheckReaction(Nanos at);

  const FaultLedger& ledger_;
  Job job_;
  Nanos scaled_at_ = 0;
  std::map<int, Node> nodes_;
  std::vector<Nanos> trouble_;
  /// From when until when, in the order in which they began; they may overlap.
  std::vector<std::pair<Nanos, Nanos>> coordinator_pauses_;

  Generation current_;
  std::set<int> members_;
  /// Members whose agent is gone; another one may be there.
  std::set<int> lost_;
  Stop stop_;
  /// The world that is being ordered.
  Generation next_;
  std::set<int> next_members_;
  std::set<int> next_lost_;
  /// Agents in it: a dead one that is not missed yet, and its successor, are on the same node.
  int next_size_ = 0;
};

}  // namespace fsdprun::sim
