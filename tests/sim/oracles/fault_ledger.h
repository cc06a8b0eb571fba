#pragma once

// The ground truth of a run: what was injected, when, on what, and who only fell victim to it.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/cluster/types.h"
#include "tests/sim/fault_mix.h"
#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

/// The node of a fault that hits the coordinator.
inline constexpr int kCoordinatorNode = -1;

/// A fault at the moment at which it took effect: a fault that was only armed is not injected yet.
struct InjectedFault {
  FaultKind kind = FaultKind::kKillWorker;
  Nanos at = 0;
  /// A fault that lasts ends here; otherwise `at`.
  Nanos until = 0;
  int node = kCoordinatorNode;
  std::string node_name;
  /// What was hit belonged to this generation. 0: the fault disturbs a node or a link, and with it
  /// whichever generation is there.
  Generation generation;
  /// The generation that cannot go on after it; 0: none for certain.
  Generation breaks;
  /// For a fault that ends one process.
  int64_t pid = 0;
  int exit_code = 0;
  int signal = 0;
  /// The process left an error of its own: whoever reads it knows that no peer was the cause.
  bool tells_its_error = false;
};

/// True for what can cost a restart; the rest (a worker that is slow to stop, an operator, a node
/// that leaves politely or comes on top) is never a failure of the job.
bool IsChargeable(FaultKind kind);

class FaultLedger {
 public:
  using FaultId = size_t;
  /// `lease` of a silent node, as long as it may be extended.
  explicit FaultLedger(Nanos lease) : aftermath_(lease + kMessagesTake) {}

  /// How long after a disturbance its consequences may show: the lease, and the messages about it.
  Nanos aftermath() const { return aftermath_; }
  /// What happens shortly before a coordinator is started again, or while its successor waits for
  /// nodes to come again, counts as lasting until that has heard of all.
  FaultId Add(InjectedFault fault);
  /// `pid` ended because it lost its peer to `fault`.
  void AddVictim(int64_t pid, FaultId fault);
  /// The coordinator orders `node` to prepare generation `g`; ends the one before.
  void WorldOrdered(Nanos at, Generation g, int node);
  void StopOrdered(Nanos at, Generation g);
  /// `node` signals or kills its workers of generation `g`.
  void WorkersTold(Nanos at, Generation g, int node);
  /// A node came or left on its own, or an operator wants something of the nodes: for a moment a
  /// stop may be about that.
  void MembershipChanged(Nanos at);
  /// The coordinator hears that the place is its own: a node that came before may join now.
  void PlaceFound(Nanos at);
  /// A node that came while there was no coordinator may join now.
  void SuccessorStarted(Nanos at) { PlaceFound(at); }
  void JobDecided(Nanos at);

  const std::vector<InjectedFault>& faults() const { return faults_; }
  /// The fault whose victim the process was, if it was one.
  std::optional<FaultId> CulpritOf(int64_t pid) const;
  /// `fault` can be why generation `g` failed: it hit a node of that world, or the coordinator, and
  /// when the world was stopped it lasted or was fresh. It may also have come during the stop of a
  /// membership change, which then counts as a failure.
  bool MayFail(const InjectedFault& fault, Generation g) const;
  /// `fault` can be called the root cause of `g`. A worker that exits after its own node told it to
  /// stop cannot, unless the stop does not explain how it ended. Until then it fails on its own,
  /// however long ago the stop was ordered: the order waits for a link or for the coordinator.
  bool MayBeRoot(const InjectedFault& fault, Generation g) const;
  /// When generation `g` ended, a node came or left, or was lost or found because of a disturbance.
  bool MayHaveChangedMembers(Generation g) const;
  /// Something injected can be why generation `g` failed.
  bool MayHaveFailed(Generation g) const;
  /// The fault that must have failed generation `g`, because it hit the running generation and
  /// nothing else was going on that could explain another course.
  const InjectedFault* MustHaveFailed(Generation g) const;
  /// A disturbance of the node, or of the coordinator, overlaps [from, to].
  bool IsDisturbed(int node, Nanos from, Nanos to) const;

 private:
  struct Span {
    Nanos began = 0;
    Nanos ended = kForever;
    Nanos first_stop = kForever;
    std::set<int> nodes;
    /// When each node first told its workers to stop.
    std::map<int, Nanos> told;

    Nanos StoppedAt() const { return std::min(first_stop, ended); }
  };
  bool IsIsolated(const InjectedFault& fault) const;

  static constexpr Nanos kMessagesTake = kSecond;

  const Nanos aftermath_;
  Nanos successor_knows_all_at_ = 0;
  std::vector<InjectedFault> faults_;
  std::map<int64_t, FaultId> victims_;
  std::map<Generation, Span> worlds_;
  std::vector<Nanos> membership_changes_;
};

}  // namespace fsdprun::sim
