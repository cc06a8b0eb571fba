#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "formats/checkpoint/file_system.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/metrics/fault_notice.h"
#include "worker/run/launch.h"
#include "worker/run/run_context.h"
#include "worker/run/run_state.h"

namespace fsdprun::worker {

/// What a run writes into checkpoint.dir: claims the directory, saves, and decides what becomes of
/// a save that fails. All calls but IsReplaced are collective. Thread: one.
class CheckpointKeeper {
 public:
  /// `context` and `state`, which is what is saved, outlive this object. `file_system`: all effects
  /// on disk go through this; unset: the real one. Tests inject faults here.
  CheckpointKeeper(const RunContext& context, checkpoint::Group group, const RunState& state,
                   std::shared_ptr<checkpoint::FileSystem> file_system = nullptr);

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

  /// Saves the present step, unless it is saved already. Returns whether some rank was asked to
  /// stop, the same on all ranks. A save that fails is told and left out, unless it cannot pass or
  /// `is_last`: Note [Faults that may pass]. Errors: checkpoint::CheckpointError; DivergedError for
  /// weights that are not finite.
  bool Save(bool is_last = false);
  /// The same because somebody has asked for it.
  bool SaveOnRequest();

  /// Whether another launch has claimed the directory. Of this rank.
  bool IsReplaced() const { return saver_ && saver_->IsReplaced(); }
  /// The run has ended, and others may have the directory, unless a run that was stopped may be
  /// started again by its launcher.
  void Release(bool is_stopped);

 private:
  checkpoint::SaverOptions OptionsFor(const LaunchIdentity& identity, uint64_t generation) const;
  void CheckSavedNames() const;
  bool GiveUp();
  /// Tells of a save that failed, if the run goes on without it.
  void TellFailure(const checkpoint::CheckpointError& error, bool is_last);
  bool IsSomeRankStopping();
  std::string LastSaveText() const;

  RunContext context_;
  checkpoint::Group group_;
  const RunState& state_;
  std::shared_ptr<checkpoint::FileSystem> file_system_;
  /// Null without checkpoint.dir.
  std::unique_ptr<checkpoint::Saver> saver_;
  bool may_be_restarted_ = false;
  /// Of the run; also what was loaded.
  std::optional<int64_t> saved_step_;
  bool is_given_up_ = false;
  FaultNotice notice_;
};

/// Renews the claim that an earlier start of the same launch has on checkpoint.dir; on rank 0, null
/// on others and where there is none to renew.
std::unique_ptr<checkpoint::ClaimPulse> HoldClaim(const std::string& dir, int64_t rank,
                                                  const std::string& job_id);

}  // namespace fsdprun::worker
