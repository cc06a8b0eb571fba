#pragma once

// Which of the admitted nodes count as alive: those whose heartbeats come, or whose stream has only
// just broken.

#include <string>
#include <utility>
#include <vector>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/node_table.h"
#include "proto/cluster/clocks.h"

namespace fsdprun {

/// The nodes themselves are in a NodeTable, which the caller owns. A node that has been released
/// has no lease.
//
// Note [A late detector]
// A coordinator that was late, because it was stopped or its machine is loaded, has not read what
// the nodes have sent meanwhile. So leases run on a clock that stands still while the coordinator
// is late, however little: a delay of its own never looks like silence. After a long delay each
// node has a whole lease anew, since agents whose stream broke are redialling.
//
// Note [Before the job runs]
// While no world has been committed, no worker waits for anybody, and the nodes that start all at
// once are the load. A node whose connection stands is then not given up for silence, and one that
// is suspected may be a member: that it is gone is told by its connection, or by the deadline of an
// order. One whose stream broke has more time to come again.
class Leases {
 public:
  /// A node whose lease is over, and a clause that says why.
  struct Lapse {
    Incarnation incarnation;
    std::string what;
  };
  struct Findings {
    std::vector<Lapse> lapses;
    /// Nodes that are suspected from now on.
    std::vector<Incarnation> suspects;
    /// For an operator; empty unless the leases of many nodes were extended.
    std::string notice;
    /// A lease has changed in a way that matters to others.
    bool has_changes = false;
  };

  /// `spec` must outlive it.
  explicit Leases(const JobSpec& spec) : spec_(spec) {}

  /// The node has a new stream.
  void Begin(job::Node& node, MonoTime now);
  /// It was heard. True if it was suspected.
  bool Renew(job::Node& node, MonoTime now) {
    node.last_heard = now;
    node.lease_from = Served(now);
    return std::exchange(node.suspect, false);
  }
  /// It is known from a coordinator before this one, and has to come again.
  void Expect(job::Node& node, MonoTime now);
  /// No other agent comes in the place of this one any more, which may have broken its stream
  /// already: see NodeInfo::has_successor.
  void ExpectNoSuccessor(job::Node& node, MonoTime now);
  /// Its stream broke.
  void Break(job::Node& node, MonoTime now);
  /// The coordinator itself was late until now: see Note [A late detector]. When each
  /// node was last heard stays as it is: it may tell the cause of a failure from its victims.
  void ForgiveLateness(const Lateness::Found& found, MonoTime now);
  /// The first world is committed: see Note [Before the job runs].
  void JobRuns(MonoTime now);
  bool has_job_run() const { return has_job_run_; }
  /// To be called at next_scan() at the latest. O(nodes).
  Findings Scan(NodeTable& nodes, MonoTime now);
  MonoTime next_scan() const { return next_scan_; }

 private:
  /// The clock on which leases run.
  MonoTime Served(MonoTime now) const { return now - forgiven_; }
  MonoTime Renewed(const job::Node& node) const;
  Duration GraceOf(const job::Node& node) const;
  MonoTime End(const job::Node& node) const;
  MonoTime NextLookAt(const job::Node& node) const;
  std::string ExtendIfCutOff(int silent, int total, MonoTime served);

  // Constant after construction.
  const JobSpec& spec_;

  MonoTime next_scan_ = MonoTime::max();
  /// How late the coordinator has been in all.
  Duration forgiven_{};
  bool has_job_run_ = false;
  bool is_extended_ = false;
  // On the clock on which leases run.
  MonoTime extended_until_{};
  /// When the last long delay of the coordinator itself was over.
  MonoTime resumed_at_{};
};

}  // namespace fsdprun
