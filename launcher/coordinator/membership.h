#pragma once

// Who is there: the admitted agents, the ranks that they ask for, their leases, and who may be a
// member of the next world.

#include <cstdint>
#include <string>
#include <vector>

#include "base/mono_time.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/leases.h"
#include "launcher/coordinator/node_table.h"
#include "launcher/coordinator/rank_assignment.h"

namespace fsdprun {

/// What follows from a change here is the caller's business.
class Membership {
 public:
  /// A node that has been admitted.
  struct Admission {
    job::Node* node = nullptr;
    /// Whose rank it takes, because that node is silent; to be lost now. 0: nobody's.
    Incarnation replaced;
    /// For the operator; mostly empty.
    std::string warning;
  };

  /// `spec` must outlive it.
  explicit Membership(const JobSpec& spec) : spec_(spec), leases_(spec) {}

  const NodeTable& nodes() const { return nodes_; }
  NodeTable& nodes() { return nodes_; }
  /// How many agents were admitted, the same one each time that it joined anew.
  uint64_t admissions() const { return admissions_; }

  // --- Joining

  /// Why the node can never be admitted; empty if it can.
  std::string Refusal(const NodeInfo& info) const;
  /// As what it holds tells: a spare, or a node with an older generation to be stopped.
  Admission Admit(NodeInfo info, Generation held, MonoTime now);
  /// As a coordinator before this one knew it: a member of its world, a spare, or released.
  void Restore(const job::NodeRecord& record, job::NodeState state, MonoTime now);
  /// The nodes with a part in the present or last world, or `all`, for a coordinator after this
  /// one.
  std::vector<job::NodeRecord> Records(bool all) const;
  /// Without regard for the rank that it asks for: it will be told how the job ends.
  job::Node& AdmitToLastWords(const NodeInfo& info, MonoTime now);
  /// A known agent has a new stream.
  void Reattach(job::Node& node, MonoTime now) { leases_.Begin(node, now); }

  // --- Leases, see Leases

  bool Heard(job::Node& node, MonoTime now) { return leases_.Renew(node, now); }
  void LostStream(job::Node& node, MonoTime now) { leases_.Break(node, now); }
  void ForgiveStall(MonoTime now) { leases_.ForgiveStall(now); }
  Leases::Findings ScanLeases(MonoTime now) { return leases_.Scan(nodes_, now); }
  MonoTime next_scan() const { return leases_.next_scan(); }

  // --- The next world

  /// The spares that may be members.
  std::vector<Incarnation> Eligible() const;
  /// A node is suspected or reconnecting: its lease will soon decide whether it can be a member.
  bool AwaitsLeaseDecision() const;
  /// The members of the world to be formed: survivors first, then nodes with a requested rank, then
  /// by arrival. The others remain spares.
  std::vector<Candidate> Choose(std::vector<Incarnation> eligible) const;
  void MakeMember(Incarnation incarnation, int group_rank);
  /// Members become spares; who was none had no part in the world that ends.
  void EndWorld();
  /// How many there are and are missing, and who has gone; a clause for an operator.
  std::string Missing(const std::vector<Incarnation>& eligible) const;
  /// Spares that had no part in the last world.
  std::vector<Incarnation> Strangers() const;

  // --- Leaving

  /// Does away with a node, which is missed from then on.
  job::Node Lose(Incarnation incarnation, const std::string& what);
  /// Does away with a node that nobody misses. Does nothing if there is no such node.
  void Dismiss(Incarnation incarnation) { nodes_.Erase(incarnation); }
  void DismissAll() { nodes_.Clear(); }
  /// A world is complete: nobody is missed any more.
  void ForgetLost() { lost_.clear(); }

 private:
  const job::Node* HolderOf(int requested_node_rank) const;
  bool IsRankFree(int rank) const;
  std::string DropImpossibleRank(NodeInfo* info) const;
  job::Node& Insert(NodeInfo info, Generation held, MonoTime now);
  std::string MissingRanks(const std::vector<Incarnation>& eligible) const;

  // Constant after construction.
  const JobSpec& spec_;

  NodeTable nodes_;
  Leases leases_;
  uint64_t admissions_ = 0;
  bool has_warned_of_rank_ = false;
  /// Nodes that left or were lost since the last complete world, with the reason; for messages.
  std::vector<std::string> lost_;
};

}  // namespace fsdprun
