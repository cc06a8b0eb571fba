#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "worker/checkpoint/checkpoint.h"
#include "worker/metrics/fault_notice.h"
#include "worker/run/launch.h"
#include "worker/run/run_context.h"
#include "worker/run/run_state.h"
#include "worker/run/save_interval.h"
#include "worker/run/save_pace.h"
#include "worker/run/stoppable_file_system.h"

namespace fsdprun::worker {

/// What a run writes into checkpoint.dir: claims the directory, saves, and decides what becomes of
/// a save that fails. All calls but IsReplaced, IsWriting, AwaitCopy and WarnIfLate are collective.
/// Thread: one.
class CheckpointKeeper {
 public:
  /// `context` and `state`, which is what is saved, outlive this object. `file_system`: all effects
  /// on disk go through this, which this object tells when to give up; unset: the real one. Tests
  /// inject faults here, and other patience.
  CheckpointKeeper(const RunContext& context, checkpoint::Group group, const RunState& state,
                   std::shared_ptr<StoppableFileSystem> file_system = nullptr,
                   SavePace pace = SavePace());
  /// What is still being written is left unfinished.
  ~CheckpointKeeper();

  // Note [Claim last]
  // A start that fails on its model or its configuration must not disturb who uses checkpoint.dir,
  // so the directory is claimed once everything else has succeeded. Until then its holder may save:
  // what was loaded is then not the newest, and is loaded again. A restart renews the claim of its
  // launch until then (HoldClaim).

  /// Calls `resume`, which loads what the run continues and returns its step, if there is such a
  /// thing; then claims the directory. `resume` is called twice if somebody has saved meanwhile.
  /// Errors: checkpoint::ClaimHeldError; ConfigError if a checkpoint of the run would replace what
  /// is not its own.
  void Claim(const LaunchIdentity& identity, uint64_t generation,
             const std::function<std::optional<int64_t>()>& resume);

  // Note [Saves beside steps]
  // With checkpoint.async a periodic save is begun, and steps follow. The state must not change
  // before AwaitCopy() has returned, which is the only wait. Ranks end their parts at different
  // times, so they tell each other with each step whether they are still writing, and Finish()
  // comes at the same place of the program on all. One save at a time: one that is due while
  // another is being written waits for that, but not for ever (SavePace), as on a hung file system;
  // then it is left out. The last save of a run is done between steps.

  /// Saves the present step, unless it is saved already, or begins to; that of the last step of
  /// train.steps is left to `is_last`. Returns whether some rank was asked to stop, the same on all
  /// ranks, if it has taken long. A save that fails is told and left out, unless `is_last` or
  /// checkpoint.on_failure is stop: Note [Faults that may pass]. Errors:
  /// checkpoint::CheckpointError; DivergedError for weights that are not finite.
  bool Save(bool is_last = false);
  /// The same because somebody has asked for it.
  bool SaveOnRequest();

  /// As Save would. Errors: DivergedError for weights that are not finite, if any are saved at all.
  void RequireFiniteWeights() const;

  /// The state was loaded again, from the checkpoint of `step` in checkpoint.dir or, nullopt, from
  /// elsewhere, and says more than what was loaded: the next Save writes it whatever is there.
  void GoOnFrom(std::optional<int64_t> step);
  /// The present step is none that may be saved, because of `why`: the run ends without a last
  /// checkpoint.
  void ForgoLast(const std::string& why);
  /// Those of which checkpoints are, or were, in checkpoint.dir since the run was started: it has
  /// saved them, or gone on from them.
  const std::set<int64_t>& saved_steps() const { return saved_steps_; }

  /// Whether by this rank's clock another one is to be saved (checkpoint.every_minutes).
  bool IsDue() const;

  /// Whether a save was begun and not finished. The same on all ranks.
  bool is_saving() const { return begun_step_.has_value(); }
  /// Whether this rank's part of it has not ended.
  bool IsWriting() const;
  /// Whether this rank has lost the way to the others, who may wait for its part.
  bool HasLostTheWay() const;
  /// Some rank has: what was begun ends soon. Collective only in that all ranks must call it.
  void GiveUpBegun();
  /// How long a stop waits for the step that is next: in the first ones the copy is waited for, by
  /// this rank or by another.
  std::chrono::milliseconds StepTimeout() const;
  /// Whether AwaitCopy() may have to wait in the step that is next or runs.
  bool MayCopy() const;
  /// Before the state changes. Returns how long it has waited.
  std::chrono::steady_clock::duration AwaitCopy();
  /// Tells how the save has ended that was begun, which it has on all ranks. `is_wanted`: false if
  /// somebody has asked for a newer one meanwhile, who is not to take this one for it.
  /// `is_last_left`: no step comes any more, so that its failure ends nothing, whatever
  /// checkpoint.on_failure says. Returns whether the run must stop, as it was given up. Errors: as
  /// Save.
  bool Finish(bool is_wanted, bool is_last_left = false);
  /// Before an error that all ranks throw alike ends the run: what was begun is good, and is
  /// finished, if it does not take too long. Errors in that are told.
  void FinishBeforeError();
  /// Says it, once, if what was begun is late.
  void WarnIfLate();

  /// Whether another launch has claimed the directory. Of this rank.
  bool IsReplaced() const { return saver_ && saver_->IsReplaced(); }
  /// The run has ended, and others may have the directory, unless a run that was stopped may be
  /// started again by its launcher.
  void Release(bool is_stopped);

 private:
  enum class SaveKind { kPeriodic, kBeforeLast, kLast };

  // How long a stop waits for a save; see StopSignal. A save ends by itself; the grace may allow
  // minutes.
  static constexpr std::chrono::milliseconds kSaveTimeout = std::chrono::minutes(10);

  checkpoint::SaverOptions OptionsFor(const LaunchIdentity& identity, uint64_t generation) const;
  void CheckSavedNames() const;
  /// Until what was begun has ended on all ranks, or for so long as SavePace says, unless
  /// `is_last`. Returns whether it has ended.
  bool AwaitBegun(bool is_last);
  /// Of what was begun while another save is due. Returns whether the way is free.
  bool MakeWay(bool is_last);
  void Begin();
  void SaveNow(bool is_last);
  void FinishBegun(SaveKind kind, bool is_wanted);
  void CancelBegun(const checkpoint::CheckpointError& why);
  /// So that the next save can be begun after the way was lost.
  void Reconnect();
  /// Does `save`, which returns the path, and tells how that has ended.
  void Tell(int64_t step, SaveKind kind, bool is_wanted, const std::function<std::string()>& save);
  void TellSaved(int64_t step, const std::string& path, bool is_wanted);
  /// Tells of a save that failed, if the run goes on without it.
  void TellFailure(int64_t step, const checkpoint::CheckpointError& error, SaveKind kind,
                   bool is_wanted);
  void GiveUp(int64_t step);
  bool IsSomeRankStopping();
  bool IsSaved(int64_t step) const { return saved_step_ == step && !is_outdated_; }
  void NoteSaved(std::optional<int64_t> step);
  std::string LastSaveText() const;

  RunContext context_;
  checkpoint::Group group_;
  const RunState& state_;
  std::shared_ptr<StoppableFileSystem> file_system_;
  // Also the thread of a save looks at them.
  const std::shared_ptr<std::atomic<bool>> is_ending_ = std::make_shared<std::atomic<bool>>(false);
  /// Of what was begun: this rank's file is not written any further.
  const std::shared_ptr<std::atomic<bool>> is_cancelled_ =
      std::make_shared<std::atomic<bool>>(false);
  /// Saves are begun, and not done at once.
  bool is_async_ = false;
  /// The next one needs another channel.
  bool must_reconnect_ = false;
  /// Of what was begun.
  bool is_begun_given_up_ = false;
  /// Null without checkpoint.dir.
  std::unique_ptr<checkpoint::Saver> saver_;
  bool may_be_restarted_ = false;
  /// Of the run; also what was loaded.
  std::optional<int64_t> saved_step_;
  std::set<int64_t> saved_steps_;
  /// What is saved says less than the state.
  bool is_outdated_ = false;
  bool is_given_up_ = false;
  /// Of the save that was begun.
  std::optional<int64_t> begun_step_;
  SaveInterval interval_;
  SavePace pace_;
  FaultNotice notice_;
  FaultNotice wait_notice_;
};

/// Renews the claim that an earlier start of the same launch has on checkpoint.dir; on rank 0, null
/// on others and where there is none to renew.
std::unique_ptr<checkpoint::ClaimPulse> HoldClaim(const std::string& dir, int64_t rank,
                                                  const std::string& job_id);

}  // namespace fsdprun::worker
