#pragma once

// What a coordinator has to know that takes a job over. Values only.
//
// Note [Taking a job over]
// A job that may be taken over is kept as one Record, written before anything is sent that depends
// on it. A coordinator that is started with the record goes on where the other ended. What agents
// tell again on a new stream (see Note [Lost messages]) is not in it: who is prepared, has started,
// has stopped, how workers ended. So every member is taken to owe the answer to the last order,
// which is repeated to it, and gets a lease that lasts until it had the time to come again. What
// agents cannot tell is in it: the numbers of worlds and what they have cost, who belongs together,
// what was ordered, which nodes are left out, what an operator has ordered (a signal, a drain,
// other numbers of nodes), and how the job has ended. Lost with a coordinator are progress, how
// often in a row a node has failed that is not left out yet, the reasons why nodes were lost that
// are no members any more, and reports of an agent that is lost before it can repeat them.
//
// Note [A record that is behind]
// A coordinator goes on if a record cannot be kept (a full disk, a file system that hangs), so its
// successor may find an older one. Agents know better: one that holds a newer generation than the
// record's, or has started workers that the record has only being prepared. What they run cannot be
// adopted, because nobody knows its ranks. So it is stopped, as if the members had changed: nothing
// is charged and nobody is at fault.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/quarantine.h"
#include "launcher/coordinator/recovery_policy.h"
#include "proto/cluster/types.h"

namespace fsdprun::job {

/// A node that has, or had in the last world, a part; once the job is over, any.
struct NodeRecord {
  NodeInfo info;
  /// See Node.
  int group_rank = -1;
  bool leaving = false;
  uint64_t sequence = 0;
};

/// The present world; without one, what is said of the last.
struct WorldRecord {
  enum class Phase { kNone, kPreparing, kRunning, kStopping };
  struct Member {
    Incarnation incarnation;
    RankAssignment assignment;
  };

  Phase phase = Phase::kNone;
  int world_size = 0;
  StoreEndpoint store;
  /// In order of incarnation; each is one of the nodes.
  std::vector<Member> members;
  /// Workers of nodes that are no members any more.
  int gone_succeeded = 0;
  /// Its workers were ordered to start.
  bool was_committed = false;
  // Meaningful while it is stopping.
  StopKind stop_kind = StopKind::kMembership;
  int stop_signal = 15;
  Duration stop_grace{};
  std::string stop_why;
};

/// How many nodes a world needs, and takes at most.
struct NodeLimits {
  int min_nodes = 1;
  int max_nodes = 1;

  bool operator==(const NodeLimits&) const = default;
};

/// No generation may be used twice, nothing charged twice, and a job that is over stays so. What
/// follows `is_over` is filled in if the job may be taken over, see JobSpec::keeps_record().
struct Record {
  /// Of the present or last world.
  Generation generation;
  RecoveryBudgets budgets;
  bool is_over = false;

  std::string launch_id;
  /// The highest that any agent has seen.
  Generation generation_floor;
  /// Worlds formed so far.
  int formations = 0;
  std::optional<int> operator_signal;
  bool agent_told_signal = false;
  bool operator_hurries = false;
  /// Of the pause before a restart that has begun; zero: none.
  Duration pause{};
  WorldRecord world;
  std::vector<QuarantinedNode> quarantine;
  /// In order of incarnation.
  std::vector<NodeRecord> nodes;
  /// What an operator has set in the place of the spec's.
  std::optional<NodeLimits> scaled;
  /// Agents whose nodes an operator has drained, in order: none of them is admitted again.
  std::vector<Incarnation> drained;
  /// Set if it is over. Without nodes then: all have left.
  std::optional<JobOutcome> outcome;
};

/// Empty, or a sentence that says why a job with this spec cannot go on with the record: it
/// contradicts itself, or was made for other terms.
std::string WhyUnusable(const Record& record, const JobSpec& spec);

}  // namespace fsdprun::job
