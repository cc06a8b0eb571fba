#pragma once

// What one node does for its generation, as a pure state machine: no clock, thread, lock,
// descriptor or log. The agent executes the actions (keeper, processes, files, stream) and feeds
// back the resulting events.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/node/contact.h"
#include "agent/node/keeper_health.h"
#include "agent/node/node_record.h"
#include "agent/node/node_spec.h"
#include "agent/node/report_log.h"
#include "agent/node/worker_set.h"
#include "base/effects.h"
#include "base/mono_time.h"
#include "proto/cluster/messages.h"
#include "proto/cluster/types.h"

namespace fsdprun {

namespace node {

// --- Events

/// First event of an incarnation, unless Resume is; starts the keeper and the first connection
/// attempt.
struct Boot {};
/// In place of Boot: another agent ran here, and its keeper is there. See Note [Adopting workers].
struct Resume {
  NodeRecord record;
};
/// A stream to the coordinator is open.
struct StreamUp {};
/// The stream broke, or an attempt to open one failed. Silence is noticed by the machine itself.
struct StreamLost {
  std::string what;
  /// The coordinator's host refused the connection: nothing listens at the address.
  bool nothing_listens = false;
};
/// While it is lost: where it, or another in its place, is from now on. Attempts lead there.
struct CoordinatorMoved {
  std::string endpoint;
};
struct KeeperReady {};
/// The keeper died or could not be started, for the reason in `what`.
struct KeeperLost {
  std::string what;
};
/// Answer to PrepareNode: log files exist and, on group rank 0, the store listens at `store`.
struct LogsAndStoreReady {
  Generation generation;
  std::optional<StoreEndpoint> store;
};
/// Answer to PrepareNode.
struct PrepareFailed {
  Generation generation;
  std::string what;
};
/// Answer to SpawnWorkers: pids in order of local rank.
struct WorkersSpawned {
  Generation generation;
  std::vector<int64_t> pids;
};
/// Answer to SpawnWorkers; workers of other local ranks may have been started.
struct SpawnFailed {
  Generation generation;
  int local_rank = 0;
  std::string what;
};
/// A worker was reaped. What NodeMachine adds to `exit` need not be filled in.
struct WorkerReaped {
  Generation generation;
  WorkerExit exit;
  /// Since the worker ended.
  Duration age{};
  /// Since the worker wrote its error file, if it wrote one.
  std::optional<Duration> error_age;
};
/// No process of the generation is left: workers reaped, their descendants gone. Follows the last
/// WorkerReaped, and answers every KillWorkers and KillOrphans, even if nothing was running.
struct AllWorkersGone {
  Generation generation;
};
/// A progress record from a worker's control socket.
struct WorkerProgress {
  Generation generation;
  int local_rank = 0;
  Progress progress;
};
/// A signal sent to this agent by an operator. Not used where the same process hosts the
/// coordinator: there the JobMachine gets OperatorStop and this node is stopped by it.
struct OperatorSignal {
  int signal = 15;
};
/// The timer of `wake_at` has expired.
struct TimerDue {};

using Event =
    std::variant<TimerDue, ToAgent, Boot, Resume, StreamUp, StreamLost, CoordinatorMoved,
                 KeeperReady, KeeperLost, LogsAndStoreReady, PrepareFailed, WorkersSpawned,
                 SpawnFailed, WorkerReaped, AllWorkersGone, WorkerProgress, OperatorSignal>;

// --- Actions

/// Start a keeper after `delay`; answer KeeperReady or KeeperLost.
struct StartKeeper {
  Duration delay{};
};
/// Open a stream after `delay`, in place of the one that is open, if any; answer StreamUp or
/// StreamLost. It may take `patience` times as long as usual.
struct ReconnectStream {
  Duration delay{};
  int patience = 1;
};
/// Make log folders; if `reset_store`, drop any older store and serve a fresh one. Answer
/// LogsAndStoreReady/PrepareFailed.
struct PrepareNode {
  RankAssignment assignment;
  bool reset_store = false;
};
/// Start the workers, those that have not been started; the assignment now has the master endpoint.
/// Answer WorkersSpawned or SpawnFailed.
struct SpawnWorkers {
  RankAssignment assignment;
};
/// Workers of an earlier agent run, or have run: be ready for what the keeper tells of them. Answer
/// WorkersSpawned, if all have been started.
struct AdoptWorkers {
  RankAssignment assignment;
};
/// Send `signal` (and SIGCONT) to every live worker of the generation, and a stop record with
/// `grace` over its control socket. 0: only the record; the grace has become shorter.
struct SignalWorkers {
  Generation generation;
  int signal = 15;
  Duration grace{};
};
/// Pass `signal` on to the workers themselves, not to what they have started, after a notice on
/// their control sockets.
struct NotifyWorkers {
  Generation generation;
  int signal = 10;
};
/// SIGKILL every process of the generation, including descendants. Answer AllWorkersGone.
struct KillWorkers {
  Generation generation;
};
/// The keeper is dead: find the processes it left behind and SIGKILL them. Answer AllWorkersGone.
struct KillOrphans {
  Generation generation;
};
/// End the agent: close the keeper's socket (which kills whatever is left), print `message` if not
/// empty, exit. Last action of an incarnation; every later event is ignored.
struct Exit {
  int code = 0;
  std::string message;
};

using Action = std::variant<StartKeeper, ReconnectStream, PrepareNode, SpawnWorkers, AdoptWorkers,
                            SignalWorkers, NotifyWorkers, KillWorkers, KillOrphans, Exit>;

// --- News, for those who only watch

/// Again, or for the first time.
struct CoordinatorFound {
  std::string endpoint;
};
/// The stream of an admitted agent broke.
struct CoordinatorLost {
  std::string why;
};
struct KeeperDied {
  std::string what;
};
/// The node has a place in this generation.
struct Assigned {
  RankAssignment assignment;
};
struct WorkersStarted {
  Generation generation;
  /// Of the first of them.
  int rank = 0;
  std::vector<int64_t> pids;
};
struct WorkerEnded {
  Generation generation;
  WorkerExit exit;
};
struct WorkersStopping {
  Generation generation;
  int signal = 15;
  Duration grace{};
  std::string why;
};
struct WorkersKilled {
  Generation generation;
};
/// No process of it is left.
struct AllEnded {
  Generation generation;
};
struct Left {
  int exit_code = 0;
  std::string why;
};

using News = std::variant<CoordinatorFound, CoordinatorLost, KeeperDied, Assigned, WorkersStarted,
                          WorkerEnded, WorkersStopping, WorkersKilled, AllEnded, Left>;

using Effects = fsdprun::Effects<NodeRecord, FromAgent, Action, News>;

std::string_view PhaseName(Phase phase);

}  // namespace node

/// Decides for one node. Total: every event is legal in every state; stale ones are dropped and
/// counted. Thread: owned by one loop thread. Time: `now` is monotonic.
class NodeMachine {
 public:
  using Event = node::Event;
  using Effects = node::Effects;

  explicit NodeMachine(NodeSpec spec);

  node::Effects Step(const node::Event& event, MonoTime now);
  /// The same into the caller's `effects`, whose buffers are used again.
  void Step(const node::Event& event, MonoTime now, node::Effects& effects);

  node::Phase phase() const { return phase_; }
  /// The generation held; 0 if none.
  Generation generation() const { return assignment_.generation; }
  /// Highest generation ever acknowledged.
  Generation highest_seen() const { return highest_seen_; }
  bool exited() const { return exited_; }
  const RankAssignment& assignment() const { return assignment_; }
  /// Why the machine is in its present state; changes only with a decision. Valid until the next
  /// Step.
  std::string_view reason() const { return reason_; }
  /// When an agent that was admitted gives up its coordinator; empty while it has a stream to it.
  std::optional<MonoTime> coordinator_deadline() const {
    return contact_.was_ever_admitted() && contact_.IsAwaited()
               ? std::optional<MonoTime>(contact_.deadline())
               : std::nullopt;
  }
  /// Where it is, or was last; for people.
  const std::string& coordinator_endpoint() const { return contact_.endpoint(); }
  /// The coordinator is lost, and another may take the job over, there or elsewhere.
  bool awaits_successor() const { return contact_.AwaitsSuccessor(); }
  /// When an agent that was never admitted gives up.
  MonoTime connect_deadline() const { return contact_.deadline(); }
  /// The job has ended, and the workers could not end by themselves.
  bool was_cut_off() const { return leaving_ && leaving_->was_cut_off; }
  /// The coordinator has said that the job, or this agent's part of it, is over.
  bool was_released() const { return leaving_ && leaving_->is_released; }
  /// This agent was released, but the job goes on.
  bool leaves_job() const { return leaving_ && leaving_->leaves_job; }
  /// When the workers that are still running are killed; empty unless a stop gives them time.
  std::optional<MonoTime> kill_at() const {
    return kill_at_ != MonoTime::max() ? std::optional<MonoTime>(kill_at_) : std::nullopt;
  }
  int live_workers() const { return workers_.live(); }
  using OwnFailure = ::fsdprun::OwnFailure;
  /// Failures of the generation held, in the order in which they were reported: for a node whose
  /// coordinator is lost, which cannot tell the job's.
  std::vector<OwnFailure> OwnFailures() const;
  /// Messages dropped because they were about another generation or incarnation.
  uint64_t stale_dropped() const { return stale_dropped_; }
  /// Empty, or a sentence that names the violated invariant. O(local world size).
  std::string CheckInvariants() const;

 private:
  struct Out;

  void Handle(const node::TimerDue&, Out& out);
  void SendHeartbeat(Out& out);
  void Handle(const ToAgent& order, Out& out);
  void Handle(const node::Boot&, Out& out);
  void Handle(const node::Resume& resume, Out& out);
  void ResumePhase(Out& out);
  void KeepRecord(Out& out);
  NodeRecord MakeRecord() const;
  std::optional<node::Leaving> HowItLeaves() const;
  void Handle(const node::StreamUp&, Out& out);
  void Handle(const node::StreamLost& lost, Out& out);
  void Handle(const node::CoordinatorMoved& moved, Out& out);
  void Handle(const node::KeeperReady&, Out& out);
  void Handle(const node::KeeperLost& lost, Out& out);
  void Handle(const node::LogsAndStoreReady& ready, Out& out);
  void Handle(const node::PrepareFailed& failed, Out& out);
  void Handle(const node::WorkersSpawned& spawned, Out& out);
  void Handle(const node::SpawnFailed& failed, Out& out);
  void Handle(const node::WorkerReaped& reaped, Out& out);
  void Handle(const node::AllWorkersGone& gone, Out& out);
  void Handle(const node::WorkerProgress& progress, Out& out);
  void Handle(const node::OperatorSignal& signal, Out& out);

  void Apply(const AdmitAgent&, Generation g, Out& out);
  void Apply(const RejectAgent& reject, Generation g, Out& out);
  void Apply(const PrepareGeneration& prepare, Generation g, Out& out);
  void Apply(const CommitGeneration& commit, Generation g, Out& out);
  void Apply(const StopWorkers& stop, Generation g, Out& out);
  void Apply(const ReleaseAgent& release, Generation g, Out& out);
  void Apply(const PassSignal& pass, Generation g, Out& out);
  void Apply(const HeartbeatHeard&, Generation, Out&) {}
  void Apply(const LeftOut& left_out, Generation g, Out& out);

  bool MayHaveProcesses() const;
  bool IsStale(Generation g);
  void BeginPrepare(const RankAssignment& assignment, Out& out);
  /// `reason` is a copy: it may be the node's own reason, which this sets.
  void StopGeneration(int signal, Duration grace, std::string reason, Out& out);
  void KillGeneration(Out& out);
  void BecomeGone(Out& out);
  void Fault(CauseKind kind, std::string what, Out& out);
  void SendJoin(Out& out);
  void FailWithoutProcesses(CauseKind kind, std::string what, Out& out);
  void LoseWorkersWithKeeper(const std::string& what, Out& out);
  void RestartKeeper(std::optional<Duration> delay, const std::string& what, Out& out);
  void GiveUpCoordinator(Out& out);
  void ForgiveLateness(MonoTime now);
  void DeclareWedged(Out& out);
  void Leave(int exit_code, std::string message, Duration timeout, Out& out);
  void FinishExit(Out& out);
  void SendReport(AgentMessage message, MonoTime happened_at, Out& out);
  void NoteEndByStop(WorkerExit exit);
  void ReportEndsByStop(Out& out);
  template <class Message>
  void SendNow(Message&& message, Generation g, Out& out);
  void SetReason(std::string reason);
  void ExplainAdmission();
  MonoTime NextWake(MonoTime now) const;

  // Read at every step, heartbeats included, and therefore together and first.
  bool exited_ = false;
  bool progress_changed_ = false;
  node::Phase phase_ = node::Phase::kIdle;
  Generation highest_seen_;
  // Timers; MonoTime::max() when not set.
  MonoTime kill_at_ = MonoTime::max();
  MonoTime wedged_at_ = MonoTime::max();
  MonoTime exit_at_ = MonoTime::max();
  MonoTime promised_wake_ = MonoTime::max();
  Lateness lateness_;
  std::string reason_;
  Contact contact_;

  // The generation held, which assignment_ names.
  RankAssignment assignment_;
  WorkerSet workers_;
  ReportLog reports_;
  /// See WorkersEnded; not reported yet.
  std::vector<WorkerExit> ends_by_stop_;
  Progress progress_;
  KeeperHealth keeper_;
  bool prepare_started_ = false;
  /// Its workers were ordered.
  bool is_spawned_ = false;
  /// A newer generation that waits until the current one is gone.
  std::optional<RankAssignment> next_assignment_;

  // Constant after construction.
  const NodeSpec spec_;

  /// What reason_ was before it told of the lost stream, which an admission makes a thing of the
  /// past.
  std::optional<std::string> reason_before_loss_;

  std::optional<node::Leaving> leaving_;

  uint64_t stale_dropped_ = 0;

  /// What of the record was last kept; of its parts, those that change.
  struct Kept {
    Generation generation;
    Generation highest_seen;
    node::Phase phase = node::Phase::kIdle;
    MonoTime kill_at{};
    std::optional<node::Leaving> leaving;
    size_t reports = 0;
    bool was_admitted = false;
    bool may_be_taken_over = false;
    Duration node_lease{};
    bool operator==(const Kept&) const = default;
  };
  /// Empty before the first step.
  std::optional<Kept> kept_;
};

}  // namespace fsdprun
