#pragma once

#include <csignal>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mono_time.h"

namespace fsdprun::chaos {

// Note [How what was started ends]
// The first process decides about the job: its command, or its coordinator. Once it has ended, or
// could not be started, nothing is started again. The launchers have a while to end by themselves
// then, are told to, and are killed. What is left when all of them have ended was started by them:
// a script's programs, of which this process is the parent now. It is told to end at once, and is
// killed later. An end that was asked for is the same, but that the first process is told, too: it
// alone at first, since it may end the others in order, and a second signal would cut that short. A
// script does not pass signals on, so the rest of its process group gets the signal after a while;
// SIGINT at once, as a terminal sends it.

/// Decides about the processes that a job is started as: when one is started again, when they are
/// told to end and killed, and when all is over. Pure: no clock, no processes.
class LaunchMachine {
 public:
  enum class Form {
    kJob,    ///< One command: its end is the job's.
    kNodes,  ///< A coordinator, whose end is the job's unless it was killed, and launchers.
  };

  struct Action {
    enum class Kind {
      kStart,
      kSignal,         ///< The process itself.
      kSignalGroup,    ///< It and all of its process group, at once.
      kSignalMembers,  ///< The others of its process group.
      kSignalRest,     ///< What they have started and left, whoever has not had the signal yet.
      kKillAll,        ///< Them, and all below them.
      kSay,
      kGiveUp,  ///< `text` says why. Comes once, and before kOver.
      kOver,    ///< With the job's exit code.
    };
    Kind kind = Kind::kOver;
    /// Of the process, in order of the names.
    size_t index = 0;
    int signal = 0;
    int code = 0;
    std::string text;

    bool operator==(const Action&) const = default;
  };

  /// `names`: as a user is told of them; the first one decides about the job.
  LaunchMachine(Form form, const std::vector<std::string>& names);

  void OnStarted(size_t index, MonoTime now);
  /// It could not be started.
  void OnCannotStart(size_t index, MonoTime now, const absl::Status& why);
  /// It was sent SIGKILL on purpose.
  void OnKilled(size_t index) { launches_[index].was_killed = true; }
  /// With its exit code, or 128 and a signal's number.
  void OnEnd(size_t index, MonoTime now, int code);
  /// The job is to end.
  void End(MonoTime now, int signal);
  /// At once.
  void KillAll(MonoTime now);
  /// A signal that is meant for those who have workers: launchers, or the command.
  void Pass(int signal);

  /// All of them have ended, and nothing is started any more: Step() is to be told of what is left.
  bool LooksForRest() const { return IsEnding() && HaveAllEnded(); }
  /// What is to be done now. Call often. `rest`: how many processes are left that they have
  /// started.
  std::vector<Action> Step(MonoTime now, int rest);

 private:
  using Kind = Action::Kind;
  enum class Phase { kWaiting, kStarting, kRunning, kEnded };
  struct Launch {
    std::string name;
    Phase phase = Phase::kWaiting;
    /// When a kWaiting one is started.
    MonoTime due_at{};
    MonoTime started_at{};
    bool has_run = false;
    bool was_killed = false;
    int failed_starts = 0;
    int quick_ends = 0;
    /// Of one that is to be started again for it.
    std::optional<int> ended_with;

    bool IsThere() const { return phase == Phase::kStarting || phase == Phase::kRunning; }
  };

  bool IsEnding() const { return is_told_ || over_at_.has_value(); }
  bool HaveAllEnded() const;
  void StartAgain(Launch& launch, MonoTime at);
  void StartNothingMore();
  void NoteQuickEnd(Launch& launch, MonoTime now, int code);
  void GiveUp(MonoTime now, std::string why);
  void EndFirst(MonoTime now, int code);
  void Tell(MonoTime now);
  void SignalLaunches(MonoTime now);
  void Kill(MonoTime now);
  void StartDue(MonoTime now);
  void EndLaunches(MonoTime now);
  void EndRest(MonoTime now, int rest);
  void LeaveRest();

  const Form form_;
  std::vector<Launch> launches_;
  /// What was decided meanwhile.
  std::vector<Action> actions_;
  /// An end was asked for.
  bool is_told_ = false;
  MonoTime told_at_{};
  int signal_ = SIGTERM;
  bool has_told_group_ = false;
  /// Since when the first one is not there any more, and will not be again.
  std::optional<MonoTime> over_at_;
  /// When the others were told.
  std::optional<MonoTime> launches_told_at_;
  /// Since when all have ended.
  std::optional<MonoTime> rest_since_;
  std::optional<MonoTime> killed_at_;
  bool has_given_up_ = false;
  int code_ = 1;
  bool is_over_ = false;
};

}  // namespace fsdprun::chaos
