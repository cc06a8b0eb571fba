#pragma once

// Which of the admitted nodes count as alive: those whose heartbeats come, or whose stream has only
// just broken.

#include <string>
#include <utility>
#include <vector>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/node_table.h"

namespace fsdprun {

/// The nodes themselves are in a NodeTable, which the caller owns. A node that has been released
/// has no lease.
class Leases {
 public:
  /// A node whose lease is over, and a clause that says why.
  struct Lapse {
    Incarnation incarnation;
    std::string what;
  };
  struct Findings {
    std::vector<Lapse> lapses;
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
    return std::exchange(node.suspect, false);
  }
  /// It is known from a coordinator before this one, and has to come again.
  void Expect(job::Node& node, MonoTime now);
  /// Its stream broke.
  void Break(job::Node& node, MonoTime now);
  /// The coordinator itself has not run until now. That says nothing about the nodes: their
  /// heartbeats lie unread, and the agents whose stream broke are redialling. When each was last
  /// heard stays as it is: it may tell the cause of a failure from its victims.
  void ForgiveStall(MonoTime now);
  /// To be called at next_scan() at the latest. O(nodes).
  Findings Scan(NodeTable& nodes, MonoTime now);
  MonoTime next_scan() const { return next_scan_; }

 private:
  MonoTime Renewed(const job::Node& node) const;
  MonoTime End(const job::Node& node) const;
  std::string ExtendIfCutOff(int silent, int total, MonoTime now);

  // Constant after construction.
  const JobSpec& spec_;

  MonoTime next_scan_ = MonoTime::max();
  bool is_extended_ = false;
  MonoTime extended_until_{};
  /// When the last stall of the coordinator itself was over.
  MonoTime resumed_at_{};
};

}  // namespace fsdprun
