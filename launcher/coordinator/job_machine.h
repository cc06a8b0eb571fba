#pragma once

// The coordinator's decisions as a pure state machine. No clock, thread, lock, I/O, randomness or
// log. The gRPC service and the simulator drive the same class. What is to be decided about nodes,
// worlds, restarts and so on is decided by its parts; here is what follows from one for the others.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/mono_time.h"
#include "launcher/coordinator/agent_signals.h"
#include "launcher/coordinator/ending.h"
#include "launcher/coordinator/host_place.h"
#include "launcher/coordinator/job_events.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/membership.h"
#include "launcher/coordinator/node_table.h"
#include "launcher/coordinator/quarantine.h"
#include "launcher/coordinator/recovery_policy.h"
#include "launcher/coordinator/rendezvous.h"
#include "launcher/coordinator/root_cause.h"
#include "launcher/coordinator/world.h"
#include "proto/cluster/messages.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Decides for the whole job. Total: every event is legal in every state; stale ones are dropped
/// and counted. Thread: owned by one loop thread. Time: `now` is the coordinator's monotonic clock.
class JobMachine {
 public:
  using Event = job::Event;
  using Effects = job::Effects;

  explicit JobMachine(const JobSpec& spec);
  /// Takes the job over as `record` says, for which WhyUnusable() is empty: see
  /// Note [Taking a job over]. The launch is the record's. TimerDue is to be its first event.
  JobMachine(const JobSpec& spec, const job::Record& record, MonoTime now);
  JobMachine(const JobMachine&) = delete;
  JobMachine& operator=(const JobMachine&) = delete;

  job::Effects Step(const job::Event& event, MonoTime now);
  /// The same into the caller's `effects`, whose buffers are used again.
  void Step(const job::Event& event, MonoTime now, job::Effects& effects);

  job::Phase phase() const;
  /// Generation of the current or last world; 0 before the first.
  Generation generation() const { return world_.generation(); }
  int restarts_used() const { return budgets_.restarts_used; }
  /// Losses, departures and growth that ended a world without counting as a failure of the program.
  int membership_changes() const { return budgets_.membership_changes; }
  /// Set once decided.
  const std::optional<JobOutcome>& outcome() const { return ending_.outcome(); }
  const NodeTable& nodes() const { return membership_.nodes(); }
  const std::string& launch_id() const { return spec_.launch_id; }
  /// As the spec says, or as an operator has changed it since.
  int min_nodes() const { return spec_.min_nodes; }
  int max_nodes() const { return spec_.max_nodes; }
  bool has_binding_ranks() const { return spec_.node_ranks_bind; }
  /// An operator has ordered the agent's node out of the job.
  bool IsDrained(Incarnation incarnation) const { return drained_.count(incarnation) != 0; }
  /// How many nodes the job would have without this one. O(nodes).
  int NodesWithout(Incarnation leaver) const { return membership_.Others(leaver); }
  /// Empty, or why an operator cannot change the nodes of this job any more, a clause.
  std::string WhyFixed() const;
  const World& world() const { return world_; }
  /// Latest progress of the node with group rank 0.
  const Progress& progress() const { return world_.progress(); }
  /// Why the job is in its present state, a clause for an operator. O(nodes) while it waits for
  /// nodes.
  std::string reason() const;
  /// Empty unless the phase is kStopping. O(workers).
  std::optional<job::StopStatus> stop() const;
  const std::optional<int>& operator_signal() const { return operator_signal_; }
  /// How often an agent of `signalled_together` got a signal that may be for its node alone.
  uint64_t doubtful_signals() const { return agent_signals_.doubts(); }
  /// When the wait for nodes is given up; meaningful in rendezvous.
  MonoTime join_deadline() const { return rendezvous_.join_deadline(); }
  /// A failed world is not yet followed by the next, see JobSpec::restart_backoff.
  bool is_pausing() const { return rendezvous_.is_pausing(); }
  /// A PlaceAsked is to be answered.
  bool awaits_place() const { return place_.is_asked(); }
  /// The job has ended because it could not be found out who hosts it.
  bool ended_at_unknown_place() const { return place_.was_given_up(); }
  /// Messages dropped because they were about another generation or an unknown incarnation.
  uint64_t stale_dropped() const { return stale_dropped_; }
  /// Incremented by every step that changed more than a lease; lets observers skip the others.
  uint64_t revision() const { return revision_; }
  /// Empty, or a sentence that names the violated invariant; also compares with the state before
  /// the last Step. O(nodes).
  std::string CheckInvariants() const;

 private:
  using Node = job::Node;
  struct Out;
  using StopKind = job::StopKind;
  /// State that a step must not revert; compared by CheckInvariants.
  struct Milestones {
    Generation generation;
    int restarts_used = 0;
    int membership_changes = 0;
    int formations = 0;
    bool outcome_decided = false;
    // Of the record only.
    bool is_finished = false;
    Generation generation_floor;
    bool has_operator_signal = false;
    bool operator_hurries = false;
    bool agent_told_signal = false;
    uint64_t departures = 0;
    uint64_t world_changes = 0;
    uint64_t quarantine_changes = 0;
    job::NodeLimits limits;
    size_t drained = 0;

    bool operator==(const Milestones&) const = default;
  };

  // job_machine.cc: a step, and what is due.
  void ForgiveLateness(MonoTime now, job::Effects& effects);
  void Handle(const job::TimerDue&, Out& out);
  void OnDelaysDue(Out& out);
  void ScanLeases(Out& out);
  void OnOverdue(Out& out);
  MonoTime NextWake() const;
  void SendTo(const Node& node, Generation g, CoordinatorMessage message, Out& out);
  static void Send(World::Orders orders, Out& out);
  void SetReason(std::string reason);
  void SetWaitsForNodes();

  // job_taken_over.cc
  Milestones Now() const;
  bool HasRecordChanged() const;
  job::Record ToRecord() const;

  // job_agents.cc: what agents report.
  void Handle(const FromAgent& envelope, Out& out);
  void Handle(const job::AgentStreamLost& lost, Out& out);
  void Handle(const job::AgentDied& died, Out& out);
  void On(const AgentHeartbeat& heartbeat, const FromAgent& envelope, Out& out);
  void On(const AgentPrepared& prepared, const FromAgent& envelope, Out& out);
  void On(const AgentStarted&, const FromAgent& envelope, Out& out);
  void On(const WorkerExited& exited, const FromAgent& envelope, Out& out);
  void On(const WorkersEnded& ended, const FromAgent& envelope, Out& out);
  void OnFailedWorker(const WorkerExited& exited, const FromAgent& envelope, Out& out);
  void On(const NodeFaulted& fault, const FromAgent& envelope, Out& out);
  void On(const WorkersStopped&, const FromAgent& envelope, Out& out);
  void On(const AgentLeft& left, const FromAgent& envelope, Out& out);
  World::Member* FindSender(const FromAgent& envelope);
  Failure FailureOf(const Node& node, CauseKind kind, std::string what) const;
  Failure FailureOf(const FromAgent& envelope, CauseKind kind, std::string what) const;
  bool RecordFailure(Failure failure, MonoTime since, Out& out);

  // job_membership.cc: nodes that come and go.
  void On(const AgentJoined& joined, const FromAgent& envelope, Out& out);
  void Admit(const AgentJoined& joined, Generation held, Out& out);
  void Reattach(Node& node, Generation held, Out& out);
  void RepeatOpenOrder(Node& node, Out& out);
  void StartCleaning(Node& node, Generation held, Out& out);
  void BecomeSpare(Node& node, Out& out);
  void OnCannotRun(const AgentJoined& joined, Out& out);
  void MaybeFinishCannotStart(Out& out);
  void LoseNode(Incarnation incarnation, CauseKind kind, const std::string& what, Out& out,
                bool is_record_behind = false);
  void HandleMemberLoss(const Node& node, const World::Member& member, CauseKind kind,
                        const std::string& what, Out& out, bool is_record_behind);
  bool IsRecordBehind(const World::Member& member, Out& out);

  // job_worlds.cc: from the first node to the end of the job.
  void MaybeForm(Out& out);
  void FormWorld(const std::vector<Candidate>& chosen, Out& out);
  void MaybeCommit(Out& out);
  void CommitWorld(Out& out);
  void RestartRendezvous(Duration pause, Out& out);
  void OnJoinTimeout(Out& out);
  void OnJoinTimeoutOfEnough(Out& out);
  int NodesOfWorld() const { return static_cast<int>(world_.members().size()); }
  bool MayGrow() const;
  void MaybeGrow(Out& out);
  void Grow(Out& out);
  void Abort(const std::string& why, Out& out);
  void Drain(StopKind kind, int signal, const std::string& why, Out& out);
  void BeginStop(StopKind kind, int signal, Duration grace, const std::string& why, Out& out);
  void EscalateStop(StopKind kind, Duration grace, Out& out);
  void FinishStop(Out& out);
  job::Recovery WhatFollows(bool is_done, MonoTime now) const;
  bool HasDoneAllSteps() const;
  void Finish(JobOutcome outcome, Out& out);
  void MaybeSendFinish(Out& out);

  // job_quarantine.cc: nodes that keep failing.
  void JudgeWorld(Out& out);
  void EndQuarantines(Out& out);
  void TellOf(const Quarantine::Finding& finding, Out& out);
  void TellOfNeeded(const std::vector<Candidate>& chosen, Out& out);
  void LeaveOutIfHeld(Node& node);
  void TellIfLeftOut(const Node& node, Out& out);
  bool HasOthersThan(const job::NodeKey& node) const;
  std::vector<std::string> DescribeLeftOut() const;

  // job_host.cc: what the launcher that hosts the job says.
  void Handle(const job::NoSuccessor& what, Out& out);
  void Handle(const job::OperatorStop& stop, Out& out);
  void StopForOperator(bool again, Out& out);
  void Handle(const job::SignalForWorkers& signal, Out& out);
  void Handle(const job::RestartAsked& asked, Out& out);
  void Handle(const job::WorldHangs& hangs, Out& out);
  const World::Member* MemberWith(int rank) const;
  void OnSignalToAgent(const Node& node, int signal, Out& out);
  void TakeForAll(int signal, Out& out);
  void Handle(const job::HostReplaced& replaced, Out& out);
  void Handle(const job::PlaceChecked& checked, Out& out);
  void Handle(const job::PlaceUnknown& unknown, Out& out);
  void CheckPlace(Out& out);
  void GoOnHere(Out& out);
  void GiveUpPlace(Out& out);
  void EndWithoutPlace(Out& out);
  JobOutcome OutcomeWithoutPlace() const;
  std::string NoMoreNodes() const;
  void TurnSparesAway(Out& out);

  // job_operator.cc: what an operator changes about the nodes.
  void Handle(const job::DrainAsked& asked, Out& out);
  bool IsNeeded(const World::Member& member) const;
  bool IsToLeave(const Node& node) const;
  void TellToLeave(const Node& node, Out& out);
  void TellDrainedToLeave(Out& out);
  ReleaseAgent ReleaseOf(const Node& node);
  bool TurnDrainedAway(Incarnation incarnation, Out& out);
  void Handle(const job::ScaleAsked& asked, Out& out);
  void StopIfSizeIsWrong(Out& out);

  // job_invariants.cc
  std::string CheckMilestones() const;
  std::string CheckMembers() const;

  // Constant after construction, but for the numbers of nodes; see job::ScaleAsked.
  JobSpec spec_;

  /// The highest generation that any agent has seen; no generation up to it may be reused.
  Generation generation_floor_;
  Membership membership_;
  World world_;
  HostPlace place_;
  AgentSignals agent_signals_;
  Rendezvous rendezvous_;
  Growth growth_;
  Quarantine quarantine_;
  Ending ending_;

  // What is used up, and what ends the job.
  int formations_ = 0;
  job::RecoveryBudgets budgets_;
  /// How many agents have said that they leave.
  uint64_t departures_ = 0;
  /// Why no world can ever be formed.
  std::optional<Failure> cannot_start_;
  std::optional<int> operator_signal_;
  /// It came by way of an agent: the coordinator's own is not the second.
  bool agent_told_signal_ = false;
  /// A second signal has come.
  bool operator_hurries_ = false;

  // What an operator has changed about the nodes.
  /// See Note [Draining a node].
  std::set<Incarnation> drained_;
  bool is_scaled_ = false;

  /// Whether a job can be kept is found out before anything depends on it.
  bool first_record_is_due_;

  // Timers; MonoTime::max() when not set.
  bool begun_ = false;
  MonoTime cannot_start_at_ = MonoTime::max();
  MonoTime promised_wake_ = MonoTime::max();
  Lateness lateness_;

  std::string reason_;
  /// The reason is that nodes are missing; which, is said when it is asked for.
  bool waits_for_nodes_ = false;
  uint64_t stale_dropped_ = 0;
  uint64_t revision_ = 0;
  Milestones before_;
};

}  // namespace fsdprun
