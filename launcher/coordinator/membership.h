#pragma once

// Who is there: the admitted agents, the ranks that they ask for, their leases, and who may be a
// member of the next world.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/mono_time.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/leases.h"
#include "launcher/coordinator/node_table.h"
#include "launcher/coordinator/rank_assignment.h"

namespace fsdprun {

/// What follows from a change here is the caller's business.
//
// Note [Counted, not searched]
// Each node is counted by what it is: whether it may be a member, whether its lease decides that
// soon, which rank it holds. Whatever changes a node counts it anew, so that a node that joins
// costs as much as itself, however many are there. CheckInvariants() compares with a count of all.
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
  void Reattach(job::Node& node, MonoTime now) {
    leases_.Begin(node, now);
    Recount(node);
  }

  // --- Leases, see Leases

  bool Heard(job::Node& node, MonoTime now) {
    const bool was_suspect = leases_.Renew(node, now);
    if (was_suspect) {
      Recount(node);
    }
    return was_suspect;
  }
  void LostStream(job::Node& node, MonoTime now) {
    leases_.Break(node, now);
    Recount(node);
  }
  /// Of all nodes with that name. O(nodes).
  void ExpectNoSuccessor(const std::string& node_name, MonoTime now);
  void ForgiveLateness(const Lateness::Found& found, MonoTime now) {
    leases_.ForgiveLateness(found, now);
  }
  Leases::Findings ScanLeases(MonoTime now);
  /// The first world is committed.
  void JobRuns(MonoTime now);
  MonoTime next_scan() const { return leases_.next_scan(); }

  // --- The next world

  /// The spares that may be members. O(nodes).
  std::vector<Incarnation> Eligible() const;
  int eligible() const { return eligible_; }
  /// Those of them that are not left out, for which a world that runs may grow. O(nodes).
  std::vector<Incarnation> Wanted() const;
  int wanted() const { return wanted_; }
  /// How many members a world could have, were there no maximum: all that are wanted, and of those
  /// that are left out as many as the minimum needs.
  int usable() const { return std::max(wanted_, std::min(eligible_, spec_.min_nodes)); }
  /// How many nodes are there, or are coming again, that do not leave: not counting `leaver`.
  /// O(nodes).
  int Others(Incarnation leaver) const;
  /// A node is suspected or reconnecting: its lease will soon decide whether it can be a member.
  bool AwaitsLeaseDecision() const { return undecided_ > 0; }
  /// The members of the world to be formed: survivors first, then nodes with a requested rank, then
  /// by arrival; of those that are left out as many as the minimum needs. The others remain spares.
  std::vector<Candidate> Choose(std::vector<Incarnation> eligible) const;
  void MakeMember(Incarnation incarnation, int group_rank);
  /// Members become spares; who was none had no part in the world that ends.
  void EndWorld();
  /// What a node is for the next world is no more than this.
  void SetState(job::Node& node, job::NodeState state) {
    node.state = state;
    Recount(node);
  }
  void SetLeftOut(job::Node& node, bool is_left_out) {
    node.is_left_out = is_left_out;
    Recount(node);
  }
  void SetLeaving(job::Node& node) {
    node.leaving = true;
    Recount(node);
  }
  /// How many there are and are missing, and who has gone; a clause for an operator.
  std::string Missing(const std::vector<Incarnation>& eligible) const;
  /// Empty, or a sentence that names the violated invariant. O(nodes).
  std::string CheckInvariants() const;
  /// Spares that had no part in the last world.
  std::vector<Incarnation> Strangers() const;

  // --- Leaving

  /// Does away with a node, which is missed from then on.
  job::Node Lose(Incarnation incarnation, const std::string& what);
  /// Does away with a node that nobody misses. Does nothing if there is no such node.
  void Dismiss(Incarnation incarnation);
  void DismissAll();
  /// A world is complete: nobody is missed any more.
  void ForgetLost() { lost_.clear(); }

 private:
  /// See Note [Counted, not searched].
  void Recount(job::Node& node);
  void CountOut(job::Node& node);
  void CountRank(job::Node& node, int rank);
  bool MayBeMember(const job::Node& node) const;
  bool IsWanted(const job::Node& node) const { return MayBeMember(node) && !node.is_left_out; }
  bool IsUndecided(const job::Node& node) const;
  const job::Node* HolderOf(int requested_node_rank) const;
  bool IsRankFree(int rank) const { return holders_.find(rank) == holders_.end(); }
  std::string DropImpossibleRank(NodeInfo* info) const;
  job::Node& Insert(NodeInfo info, Generation held, MonoTime now);
  std::string MissingRanks(const std::vector<Incarnation>& eligible) const;

  // Constant after construction.
  const JobSpec& spec_;

  NodeTable nodes_;
  Leases leases_;
  uint64_t admissions_ = 0;
  bool has_warned_of_rank_ = false;
  int eligible_ = 0;
  int wanted_ = 0;
  int undecided_ = 0;
  /// By rank: who was promised it, or has it in the present or last world without a wish of its
  /// own. Only looked up, never iterated.
  absl::flat_hash_map<int, std::vector<Incarnation>> holders_;
  /// The latest nodes that left or were lost since the last complete world, with the reason; for
  /// messages.
  std::deque<std::string> lost_;
};

}  // namespace fsdprun
