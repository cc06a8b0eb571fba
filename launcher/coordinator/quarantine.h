#pragma once

// Which nodes are left out of worlds because they keep failing: a pure function of how worlds have
// ended.
//
// Note [Evidence about a node]
// A world has ended because of a node if that was the first to fail in it: a worker of it, or it as
// a whole, or it was lost before its workers were started. That is evidence about the node only if
// others were there that could have failed. JobSpec::quarantine_after such worlds in a row, within
// JobSpec::quarantine_window, and the node is left out as long as there are enough others. One
// world that ends because of another node, or because several nodes were lost at once, and it
// begins anew: what fails on one node after the other is the program's, or the network's. A fault
// of the program may also hit the same node each time, because a node keeps its ranks. That shows
// when the node is left out, and costs no world: if within the window a worker of another node
// fails first in the same way (its rank, or its exit code and signal, are the same), the node is
// taken again, into the next world. A node is the same one after its launcher, or the machine, was
// started again: whatever has its name and address. Several agents of one machine are one node
// here.
//
// Note [The end of a quarantine]
// Machines are repaired, and links and disks recover, so nobody is left out for ever: a quarantine
// lasts kQuarantineWindows windows, and each further one of the same node twice as long as the one
// before, up to 2^kMostDoublings times. A node that does not heal so costs ever fewer worlds. An
// end by time is noticed when a world is to be formed: no world is ever stopped to have a node
// back. An acquittal is no such end: the node has never been in quarantine. A successor of the
// coordinator begins the time anew.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"
#include "proto/cluster/types.h"

namespace fsdprun {

namespace job {

/// What is the same for all agents of one machine, one after the other or side by side.
struct NodeKey {
  std::string name;
  std::string address;

  bool operator==(const NodeKey&) const = default;
  bool operator<(const NodeKey& other) const {
    return std::tie(name, address) < std::tie(other.name, other.address);
  }
};

inline NodeKey KeyOf(const NodeInfo& info) { return {info.name, info.address}; }
/// "gpu-7 (10.0.0.7)".
std::string Described(const NodeKey& node);

/// Why a world has ended, as far as it says something about a node.
struct WorldBreak {
  NodeKey node;
  /// Nodes other than this one had a part in it.
  bool had_others = false;
  /// It was lost, and others were at the same time.
  bool is_of_several = false;
  /// Set if a worker was the first to fail.
  struct Worker {
    int rank = 0;
    int exit_code = 0;
    int signal = 0;
  };
  std::optional<Worker> worker;
  /// A clause for an operator.
  std::string what;
};

/// `report` is that of the world's failures.
WorldBreak BreakOf(const FailureReport& report, bool had_others);

/// A node that is left out, as the next coordinator needs it.
struct QuarantinedNode {
  NodeKey node;
  /// How many worlds in a row it has ended.
  int breaks = 0;
  /// The last of them.
  std::optional<WorldBreak::Worker> worker;
  std::string what;
  /// How often it has been left out, this time included.
  int times = 1;
};

/// How long a first quarantine lasts, in JobSpec::quarantine_window.
inline constexpr int kQuarantineWindows = 6;
/// Of that, for the further ones of a node.
inline constexpr int kMostDoublings = 3;
Duration LengthOf(const QuarantinedNode& node, const JobSpec& spec);

}  // namespace job

class Quarantine {
 public:
  struct Finding {
    enum class Kind {
      kLeftOut,
      kTakenAgain,
      kNeeded,  // it is left out, but for the next world there are too few others
    };
    Kind kind = Kind::kLeftOut;
    job::QuarantinedNode node;
    /// For kTakenAgain: a clause that says why.
    std::string why;
  };
  using Findings = std::vector<Finding>;

  /// `spec` must outlive it.
  explicit Quarantine(const JobSpec& spec) : spec_(spec) {}

  /// The present world loses a node before its workers were started, which will end it.
  void LostEarly(job::WorldBreak loss);
  /// `failure`: what has ended it, if it was a failure.
  Findings WorldEnded(std::optional<job::WorldBreak> failure, MonoTime now);
  /// A world may be formed: those whose time is over are left out no longer.
  Findings EndOverdue(MonoTime now);
  /// A world is formed with them, each of which is left out where that can be helped.
  Findings Needed(const std::vector<job::NodeKey>& nodes);

  /// nullptr if it is not left out.
  const job::QuarantinedNode* Find(const job::NodeKey& node) const;
  /// A sentence for whoever waits on that node.
  std::string Describe(const job::QuarantinedNode& node) const;

  // --- Taking a job over

  /// In order of their names. Breaks in a row that are too few are not kept.
  std::vector<job::QuarantinedNode> ToRecord() const;
  /// Nobody is left out any more if that is not wanted any more.
  void Restore(const std::vector<job::QuarantinedNode>& nodes, MonoTime now);
  /// How often that has changed.
  uint64_t changes() const { return changes_; }

 private:
  struct Held {
    job::QuarantinedNode node;
    MonoTime since;
    bool is_needed = false;
  };
  struct Break {
    MonoTime at;
    job::WorldBreak what;
  };

  void Count(job::WorldBreak what, MonoTime now);
  void Acquit(const job::WorldBreak& what, MonoTime now, Findings* findings);
  Held* FindHeld(const job::NodeKey& node);
  void Hold(Held held);

  // Constant after construction.
  const JobSpec& spec_;

  /// Of one node, oldest first.
  std::deque<Break> in_a_row_;
  std::optional<job::WorldBreak> lost_early_;
  /// In order of their keys.
  std::vector<Held> held_;
  /// How often nodes were left out, also those that are no longer.
  std::map<job::NodeKey, int> times_;
  uint64_t changes_ = 0;
};

}  // namespace fsdprun
