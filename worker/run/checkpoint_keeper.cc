#include "worker/run/checkpoint_keeper.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <utility>

#include "worker/checkpoint/channel.h"
#include "worker/checkpoint/exchange.h"
#include "worker/run/failure.h"
#include "worker/run/refuse_for_good.h"
#include "worker/run/save_channel.h"
#include "worker/run/stop_signal.h"
#include "worker/world/vote.h"

namespace fsdprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

CheckpointKeeper::CheckpointKeeper(const RunContext& context, checkpoint::Group group,
                                   const RunState& state,
                                   std::shared_ptr<StoppableFileSystem> file_system, SavePace pace)
    : context_(context),
      group_(std::move(group)),
      state_(state),
      file_system_(file_system ? std::move(file_system) : std::make_shared<StoppableFileSystem>()),
      interval_(context.config.checkpoint.every_minutes),
      pace_(pace) {
  file_system_->GiveUpIf(
      [&stop = context_.stop, is_ending = is_ending_, is_cancelled = is_cancelled_] {
        return *is_ending || *is_cancelled || stop.MustGiveUpSave();
      });
}

CheckpointKeeper::~CheckpointKeeper() { *is_ending_ = true; }

void CheckpointKeeper::Claim(const LaunchIdentity& identity, uint64_t generation,
                             const std::function<std::optional<int64_t>()>& resume) {
  const std::string& dir = context_.config.checkpoint.dir;
  if (dir.empty()) {
    NoteSaved(resume());
    return;
  }
  const int64_t publications = checkpoint::CountPublications(dir, group_);
  NoteSaved(resume());
  CheckSavedNames();
  may_be_restarted_ = !identity.launch.job_id.empty();
  checkpoint::SaverOptions options = OptionsFor(identity, generation);
  options.background = context_.config.checkpoint.is_async ? MakeSaveChannel(group_) : nullptr;
  is_async_ = options.background != nullptr;
  saver_ = std::make_unique<checkpoint::Saver>(options);
  if (checkpoint::CountPublications(dir, group_) != publications) {
    saved_steps_.clear();
    NoteSaved(resume());
    CheckSavedNames();
  }
  interval_.Begin(Clock::now());
}

bool CheckpointKeeper::IsDue() const {
  return saver_ && !is_given_up_ && interval_.IsDue(Clock::now());
}

checkpoint::SaverOptions CheckpointKeeper::OptionsFor(const LaunchIdentity& identity,
                                                      uint64_t generation) const {
  const TrainConfig::Checkpoint& config = context_.config.checkpoint;
  checkpoint::SaverOptions options;
  options.dir = config.dir;
  options.keep = config.keep;
  options.keep_every = config.keep_every;
  options.group = group_;
  options.file_system = file_system_;
  options.must_give_up = [disk = file_system_] { return disk->MustGiveUp(); };
  options.generation = generation;
  options.job_id = identity.launch.job_id;
  options.claim_timeout =
      std::chrono::milliseconds(std::llround(1000 * config.claim_timeout_seconds));
  // A restart whose directory was taken must not take it back, and so on for ever.
  options.takes_over = config.takeover && !identity.launch.is_restart;
  return options;
}

/// Of a directory in the way the user hears now rather than after hours of training.
void CheckpointKeeper::CheckSavedNames() const {
  const TrainConfig& config = context_.config;
  const auto will_save = [&](int64_t step) { return WillSave(config, saved_step_, step); };
  const auto look = [&] {
    checkpoint::CheckReplaceable(config.checkpoint.dir, state_.run, will_save);
    return std::string();
  };
  RefuseForGood<checkpoint::CheckpointError>([&] { checkpoint::AttemptOnRank0(group_, look); });
}

bool CheckpointKeeper::Save(bool is_last) {
  const int64_t step = state_.step;
  const bool is_coming = !is_last && (begun_step_ == step || step >= context_.config.train.steps);
  if (!saver_ || is_coming || (!is_saving() && (IsSaved(step) || is_given_up_))) {
    return is_given_up_;
  }
  const Vitals::Within phase(context_.vitals, contract::WorkerPhase::kSaving);
  StopSignal::SetTimeout(kSaveTimeout);
  interval_.Begin(Clock::now());
  const bool has_waited = is_saving();
  if (!MakeWay(is_last) || IsSaved(step) || is_given_up_) {
    return is_given_up_ || IsSomeRankStopping();
  }
  RequireFiniteWeights();
  if (!is_last) {
    Reconnect();
  }
  if (!is_last && is_async_) {
    Begin();
    return has_waited && IsSomeRankStopping();
  }
  SaveNow(is_last);
  return is_given_up_ || IsSomeRankStopping();
}

void CheckpointKeeper::RequireFiniteWeights() const {
  if (saver_ && !HasFiniteWeights(state_.model, context_.world)) {
    throw DivergedError("step " + std::to_string(state_.step) +
                        ": its update has made weights infinite or NaN, so no checkpoint of it was "
                        "written. Lower optimizer.lr, and resume from the previous checkpoint");
  }
}

void CheckpointKeeper::NoteSaved(std::optional<int64_t> step) {
  saved_step_ = step;
  is_outdated_ = false;
  if (step) {
    saved_steps_.insert(*step);
  }
}

void CheckpointKeeper::GoOnFrom(std::optional<int64_t> step) {
  NoteSaved(step);
  is_outdated_ = true;
}

void CheckpointKeeper::ForgoLast(const std::string& why) {
  if (saver_ && !is_given_up_) {
    is_given_up_ = true;
    context_.channel.SendNoCheckpoint(state_.step, why);
    context_.report.Event("warning: no checkpoint of step " + std::to_string(state_.step) +
                          " is written: " + why + "; " + LastSaveText());
  }
}

void CheckpointKeeper::SaveNow(bool is_last) {
  *is_cancelled_ = false;
  Tell(state_.step, is_last ? SaveKind::kLast : SaveKind::kPeriodic, /*is_wanted=*/true,
       [&] { return saver_->Save(state_.step, Capture(state_, context_.config)); });
}

void CheckpointKeeper::Tell(int64_t step, SaveKind kind, bool is_wanted,
                            const std::function<std::string()>& save) {
  std::string path;
  try {
    path = save();
  } catch (const checkpoint::ClaimHeldError&) {
    throw;
  } catch (const checkpoint::CheckpointError& error) {
    if (error.error_number() == ECANCELED) {
      GiveUp(step);
      return;
    }
    must_reconnect_ = must_reconnect_ || error.error_number() == checkpoint::kChannelLost;
    TellFailure(step, error, kind, is_wanted);
    return;
  }
  TellSaved(step, path, is_wanted);
}

void CheckpointKeeper::TellSaved(int64_t step, const std::string& path, bool is_wanted) {
  NoteSaved(step);
  context_.stop.NoteSave(saver_->save_time());
  if (step == state_.step) {
    // Who has asked for one meanwhile gets this one: no step was done since.
    context_.channel.PollStop();
    context_.channel.TakeSave();
  }
  if (is_wanted) {
    context_.channel.SendCheckpoint(step, path);
  }
  context_.report.Checkpoint(path);
}

void CheckpointKeeper::GiveUp(int64_t step) {
  is_given_up_ = true;
  context_.channel.SendNoCheckpoint(step, "the grace of a stop is over");
  context_.report.Event("warning: the checkpoint of step " + std::to_string(step) +
                        " was given up, because the grace of the stop is over; " + LastSaveText());
}

void CheckpointKeeper::TellFailure(int64_t step, const checkpoint::CheckpointError& error,
                                   SaveKind kind, bool is_wanted) {
  const std::string text = std::string(error.what()) + "; " + LastSaveText();
  if (is_wanted && kind != SaveKind::kBeforeLast) {  // which the last one answers
    context_.channel.SendNoCheckpoint(step, text);
  }
  if (kind == SaveKind::kLast) {
    throw checkpoint::CheckpointError("the last " + text, error.error_number());
  }
  if (kind == SaveKind::kBeforeLast) {
    context_.report.Warn(notice_, step, text + "; the last one is written now");
    return;
  }
  if (context_.config.checkpoint.on_failure == "stop") {
    throw checkpoint::CheckpointError(
        text + "; the training ends, as checkpoint.on_failure is stop", error.error_number());
  }
  context_.report.Warn(notice_, step,
                       text + "; training goes on and tries again at the next period");
}

bool CheckpointKeeper::IsSomeRankStopping() {
  return Vote(context_.world, context_.stop.Answer()).Highest() != kGoOn;
}

bool CheckpointKeeper::SaveOnRequest() {
  if (saver_) {
    return Save();
  }
  context_.channel.SendNoCheckpoint(state_.step, "checkpoint.dir is not set");
  context_.report.Event(
      "warning: a checkpoint of step " + std::to_string(state_.step) +
      " was asked for, and not saved: checkpoint.dir is not set; training goes on");
  return false;
}

std::string CheckpointKeeper::LastSaveText() const {
  return saved_step_ ? "the newest is of step " + std::to_string(*saved_step_)
                     : "there is none of this run";
}

void CheckpointKeeper::Release(bool is_stopped) {
  if (saver_ && !(is_stopped && may_be_restarted_)) {
    saver_->Release();
  }
}

std::unique_ptr<checkpoint::ClaimPulse> HoldClaim(const std::string& dir, int64_t rank,
                                                  const std::string& job_id) {
  return rank != 0 || dir.empty() || job_id.empty() ? nullptr : checkpoint::KeepClaim(dir, job_id);
}

}  // namespace fsdprun::worker
