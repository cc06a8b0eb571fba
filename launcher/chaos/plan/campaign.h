#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mono_time.h"
#include "launcher/chaos/plan/fault.h"
#include "launcher/chaos/plan/job_view.h"

namespace fsdprun::chaos {

/// What tells that the job has answered a fault, beside that all its workers run and get on: see
/// Campaign.
struct Expectation {
  /// In another world than before.
  bool new_world = false;
  /// Of another coordinator.
  bool new_coordinator = false;
};

struct FaultRecord {
  enum class State {
    kPlanned,
    kUnderWay,  ///< It was done, and is to be lifted.
    kOver,      ///< It was lifted, or took no time; the job has not answered yet.
    kAnswered,
    kUnanswered,
    kSkipped,  ///< There was nobody to do it to.
  };

  PlannedFault planned;
  State state = State::kPlanned;
  /// A kBegin was asked for, at that time, and is not known to be carried out.
  bool is_beginning = false;
  MonoTime asked_at{};
  /// Since when it is tried in vain.
  std::optional<MonoTime> tried_since;
  /// Whom it met, or why it was left out.
  std::string what;
  Expectation expects;
  MonoTime begun_at{};
  MonoTime over_at{};
  /// Since when all workers run again, in which world, and at which step they were then; unset:
  /// they do not, as far as is known.
  std::optional<MonoTime> runs_since;
  uint64_t runs_in = 0;
  int64_t step_then = -1;
  /// When it was answered: by a step, or by the workers that ran from then on.
  MonoTime answered_at{};
  uint64_t generation_before = 0;
  /// The newest world of which an answer tells that was asked for before the fault, and heard after
  /// it: nobody knows which of them was first.
  uint64_t generation_in_doubt = 0;
  /// How many workers.
  int world_before = 0;
  int world_after = 0;
  /// The world in which it was over: what its workers had done by then is no answer.
  uint64_t generation_when_over = 0;
  uint64_t generation_after = 0;
  int64_t coordinator_before = 0;
  int restarts_before = 0;
  int restarts_after = 0;
  /// What the job called failures meanwhile, the first few.
  std::vector<std::string> failures;

  bool IsOpen() const { return state == State::kUnderWay || state == State::kOver; }
  /// It was done to somebody.
  bool IsDone() const { return state != State::kPlanned && state != State::kSkipped; }
};

/// Decides when which fault of a plan is done and lifted, and whether the job has answered it: all
/// its workers run, and get on. That they do is shown by a step that they report, where they have
/// reported any before; else by the same world that holds for a while, since a world runs before
/// its workers have done anything. A world that lacks workers, or may be from before the fault, is
/// an answer only if no other one comes as long as there is patience: that one may not get on.
/// Pure: no clock, no processes.
class Campaign {
 public:
  struct Options {
    FaultPlan plan;
    /// How long a job may take to answer a fault that is over.
    Duration patience{};
    /// How long a world without steps has to hold.
    Duration settle{};
    /// No fault begins later than that after all workers ran for the first time, and how many there
    /// are is not known before; unset: all faults of the plan come.
    std::optional<Duration> duration;
    /// Faults come although earlier ones are open; those at fixed times do anyhow.
    bool overlaps = false;
    /// All workers that there were at first are to run again, not only as many as the job needs.
    bool needs_full_world = false;
  };

  struct Action {
    enum class Kind { kBegin, kLift, kEnd };
    Kind kind = Kind::kEnd;
    /// Of records().
    size_t index = 0;

    bool operator==(const Action&) const = default;
  };

  /// Why no more faults come.
  enum class End {
    kNotYet,
    kDone,     ///< All were answered, or left out.
    kJobOver,  ///< The job has ended meanwhile.
    kNotSurvived,
    kNeverRan,  ///< The workers did not run in time.
    kStopped,   ///< By the user.
  };

  explicit Campaign(Options options);

  /// What is to be done now. Call whenever something is known anew, and often.
  std::vector<Action> Step(MonoTime now, const JobView& view);
  /// A kBegin was carried out, at once or later.
  void OnBegun(size_t index, MonoTime now, std::string what, Expectation expects);
  /// A kBegin could not be: there may be nobody yet in a world that has just been formed. It is
  /// tried again for a while, and then left out; what fills a disk at once, since it would have to
  /// be filled and freed each time.
  void OnSkipped(size_t index, MonoTime now, std::string why);
  /// A kLift was carried out.
  void OnLifted(size_t index, MonoTime now);
  /// What was left out was done all the same.
  void OnDoneTooLate(size_t index, const std::string& what);
  /// The job calls something a failure.
  void OnFailure(const std::string& what);
  /// The job has ended. `exit_code`: unset if nobody knows it. Returns what is to be lifted.
  std::vector<Action> OnJobOver(MonoTime now, std::optional<int> exit_code);
  /// The job has ended, and the command that has started it, which goes on, will tell how: until
  /// OnJobOver() what is open stays so. Returns what is to be lifted.
  std::vector<Action> OnJobGone(MonoTime now);
  /// The user has had enough. Returns what is to be lifted.
  std::vector<Action> Stop();

  /// Of the plan; once the duration is over, of the faults that came.
  const std::vector<FaultRecord>& records() const { return records_; }
  const Options& options() const { return options_; }
  End end() const { return end_; }
  /// With kJobOver, where it is known.
  const std::optional<int>& job_exit_code() const { return job_exit_code_; }
  /// The job, as it was known when no more faults came.
  const JobView& view_at_end() const { return view_at_end_; }
  /// When all workers ran for the first time.
  std::optional<MonoTime> began_at() const { return began_at_; }
  /// Failures while no fault was open.
  const std::vector<std::string>& unexplained() const { return unexplained_; }

 private:
  bool RunsAgain(const JobView& view) const;
  bool MayBeAnswered(const FaultRecord& record, const JobView& view) const;
  bool GetsOn(const FaultRecord& record, const JobView& view) const;
  static bool IsBeyondDoubt(const FaultRecord& record, const JobView& view);
  bool IsAnswered(FaultRecord* record, const JobView& view) const;
  void NoteWhatIsHeardLate(const JobView& view);
  void Judge(MonoTime now, const JobView& view);
  void LiftDue(MonoTime now, std::vector<Action>* actions) const;
  void LeaveOutWhatHangs(MonoTime now, std::vector<Action>* actions);
  bool MayBegin(const FaultRecord& record, MonoTime now, const JobView& view) const;
  void BeginDue(MonoTime now, const JobView& view, std::vector<Action>* actions);
  std::vector<Action> Finish(End end, std::vector<Action> actions = {});
  std::vector<Action> LiftAll() const;
  void DropWhatDidNotCome();
  bool HasOpen() const;
  /// Faults that have not begun, and whose time has not run out.
  bool HasMore(MonoTime now) const;
  MonoTime DueAt(const FaultRecord& record) const;

  const Options options_;
  std::vector<FaultRecord> records_;
  End end_ = End::kNotYet;
  std::optional<MonoTime> asked_first_;
  std::optional<MonoTime> began_at_;
  /// Since when the next fault is waited for.
  MonoTime free_since_{};
  int full_world_ = 0;
  /// Its workers report steps.
  bool has_steps_ = false;
  JobView view_;
  JobView view_at_end_;
  std::optional<int> job_exit_code_;
  /// When the job had ended, while it is not known how.
  std::optional<MonoTime> gone_at_;
  std::vector<std::string> unexplained_;
};

}  // namespace fsdprun::chaos
