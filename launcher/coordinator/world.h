#pragma once

// One world: the nodes of a generation and their ranks, and how far they have come in preparing,
// starting and stopping it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mono_time.h"
#include "launcher/coordinator/job_events.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/rank_assignment.h"
#include "launcher/coordinator/recovery_policy.h"
#include "launcher/coordinator/root_cause.h"

namespace fsdprun {

/// The present world; where there is none, what is known of the last one. It knows the orders that
/// lead from one phase to the next and who has answered; when that is to happen is for the caller
/// to decide. Functions return the orders to be sent.
class World {
 public:
  enum class Phase {
    kNone,
    kPreparing,  // members set up logs and store
    kRunning,    // committed: workers start or run
    kStopping,   // waits until no process of the generation is left
  };
  enum class MemberState { kPreparing, kPrepared, kCommitted, kStarted, kStopping, kStopped };
  struct Member {
    Incarnation incarnation;
    std::string name;
    MemberState state = MemberState::kPreparing;
    RankAssignment assignment;
    /// Number of workers that exited with 0 without being stopped.
    int succeeded_count = 0;
    /// Which local ranks have exited.
    std::vector<bool> exited;

    bool IsDone() const { return succeeded_count == assignment.local_world_size; }
  };
  struct Stop {
    job::StopKind kind = job::StopKind::kMembership;
    int signal = 15;
    Duration grace{};
    std::string why;
  };
  /// In order of incarnation. Pointers, so that one that is lost costs no move of the others.
  using Members = std::vector<std::unique_ptr<Member>>;
  using Orders = std::vector<ToAgent>;
  /// What an answer to an order has brought.
  enum class Answered {
    kNothing,  // it is not owed, or not any more
    kOne,
    kAll,      // nobody owes an answer any more
    kNoStore,  // group rank 0 is prepared, but names no store
  };
  /// What the end of a worker has brought.
  enum class Ended {
    kNothing,  // it is known, or of no worker
    kWell,
    kAllWell,  // the last worker of a running world has exited with 0
    kFailed,
  };

  /// `spec` must outlive it.
  explicit World(const JobSpec& spec) : spec_(spec) {}

  Phase phase() const { return phase_; }
  /// Of the present or the last world; 0 before the first.
  Generation generation() const { return generation_; }
  const Members& members() const { return members_; }
  /// The number of workers that it began with.
  int world_size() const { return world_size_; }
  /// When the members that have not answered are overdue; MonoTime::max() if nobody owes an answer.
  MonoTime deadline() const { return deadline_; }
  /// The time to answer is given anew by `delay`.
  void PutOffDeadline(Duration delay);
  bool IsAwaited() const { return awaiting_ > 0; }

  // --- Orders

  Orders Form(const std::vector<Candidate>& chosen, const WorldNumbers& numbers, MonoTime now);
  /// All are prepared.
  Orders Commit(MonoTime now);
  /// It is being prepared, or runs.
  Orders BeginStop(Stop stop, MonoTime now);
  /// A stop of which a failure has become known.
  void CountStopAsFailure();
  /// A longer grace than the present one changes nothing.
  Orders ShortenGrace(Duration grace, MonoTime now);
  Orders PassToWorkers(int signal) const;
  /// What is to be said again to a member on a new stream.
  std::optional<ToAgent> OpenOrder(const Member& member) const;
  /// Nobody is a member any more.
  void End();

  // --- Taking a job over, see Note [Taking a job over]

  job::WorldRecord ToRecord() const;
  /// Once, before anything else. `nodes` has a node for each member.
  void Restore(const job::WorldRecord& record, Generation generation,
               const std::vector<job::NodeRecord>& nodes, MonoTime now);
  /// How often something of the record has changed.
  uint64_t changes() const { return changes_; }

  // --- Reports

  /// nullptr unless the sender is a member and the message is about the present generation; see
  /// Note [Fencing by generation].
  Member* FindSender(const FromAgent& envelope);
  const Member* Find(Incarnation incarnation) const;
  Answered Prepared(Member& member, const AgentPrepared& prepared, MonoTime now);
  Answered Started(Member& member);
  Answered Stopped(Member& member);
  Ended WorkerEnded(Member& member, const WorkerExit& exit);
  void NoteProgress(const Progress& progress);
  /// The member must be there.
  Member Remove(Incarnation incarnation);
  /// Those who owe an answer at the deadline, and a clause that says which.
  struct Overdue {
    std::vector<Incarnation> members;
    std::string what;
  };
  /// The deadline has passed, and is none any more.
  Overdue PassDeadline();
  /// A member that has acknowledged the present generation must still hold it, and none may hold a
  /// newer one.
  bool HasLostGeneration(Incarnation incarnation, Generation held) const;

  // --- Of the present or the last world

  const Stop& stop() const { return stop_; }
  /// Meaningful while it is stopping.
  job::StopStatus StopProgress() const;
  /// Its workers were ordered to start.
  bool WasCommitted() const { return committed_at_ != MonoTime::max(); }
  /// Since then; zero if they never were.
  Duration RanFor(MonoTime now) const;
  const StoreEndpoint& store() const { return store_; }
  const WorkerEnds& ends() const { return ends_; }
  FailureLog& failures() { return failures_; }
  const FailureLog& failures() const { return failures_; }
  /// The latest that any world has reported.
  const Progress& progress() const { return progress_; }
  /// It is this world's.
  bool has_progress() const { return has_progress_; }
  bool HasAnySucceeded() const { return succeeded_workers_ > 0; }
  bool HaveAllSucceeded() const { return succeeded_workers_ == world_size_; }
  /// All workers have ended well, and its progress says that there was nothing left to do.
  bool HasDoneAllSteps() const;
  /// Empty, or a sentence that names the violated invariant. O(members).
  std::string CheckInvariants() const;

 private:
  /// The state of a member that owes an answer in this phase.
  MemberState OwingState() const;
  bool Owes(const Member& member) const { return member.state == OwingState(); }
  std::vector<Incarnation> Owing() const;
  Members::const_iterator Place(Incarnation incarnation) const;
  void Await(MonoTime deadline);
  Answered Answer(Member& member, MemberState state);
  ToAgent Order(const Member& member, CoordinatorMessage message) const;
  void NoteEnd(const Member& member, const WorkerExit& exit);
  std::string CheckRanks() const;
  MonoTime DeadlineAfterRestore(MonoTime now) const;

  // Constant after construction.
  const JobSpec& spec_;

  Phase phase_ = Phase::kNone;
  Generation generation_;
  Members members_;
  /// Members that have not yet answered the phase's order.
  int awaiting_ = 0;
  MonoTime deadline_ = MonoTime::max();
  int world_size_ = 0;
  int succeeded_workers_ = 0;
  /// Those of them that are not a member's.
  int gone_succeeded_ = 0;
  uint64_t changes_ = 0;
  MonoTime committed_at_ = MonoTime::max();
  StoreEndpoint store_;
  WorkerEnds ends_;
  FailureLog failures_;
  Progress progress_;
  /// `progress_` is of this world.
  bool has_progress_ = false;
  Stop stop_;
  MonoTime kill_at_ = MonoTime::max();
};

}  // namespace fsdprun
