#include "worker/run/checkpoint_keeper.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <utility>

#include "worker/run/failure.h"
#include "worker/run/refuse_for_good.h"
#include "worker/run/stop_signal.h"
#include "worker/run/stoppable_file_system.h"
#include "worker/world/vote.h"

namespace fsdprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// How long a stop waits for a save; see StopSignal. A save ends by itself; the grace may allow
// minutes.
constexpr auto kSaveTimeout = std::chrono::minutes(10);

}  // namespace

CheckpointKeeper::CheckpointKeeper(const RunContext& context, checkpoint::Group group,
                                   const RunState& state,
                                   std::shared_ptr<checkpoint::FileSystem> file_system)
    : context_(context),
      group_(std::move(group)),
      state_(state),
      file_system_(std::move(file_system)) {
  if (!file_system_) {
    file_system_ = std::make_shared<StoppableFileSystem>(
        [&stop = context_.stop] { return stop.MustGiveUpSave(); });
  }
}

void CheckpointKeeper::Claim(const LaunchIdentity& identity, uint64_t generation,
                             const std::function<std::optional<int64_t>()>& resume) {
  const std::string& dir = context_.config.checkpoint.dir;
  if (dir.empty()) {
    saved_step_ = resume();
    return;
  }
  const int64_t publications = checkpoint::CountPublications(dir, group_);
  saved_step_ = resume();
  CheckSavedNames();
  may_be_restarted_ = !identity.launch.job_id.empty();
  saver_ = std::make_unique<checkpoint::Saver>(OptionsFor(identity, generation));
  if (checkpoint::CountPublications(dir, group_) != publications) {
    saved_step_ = resume();
    CheckSavedNames();
  }
}

checkpoint::SaverOptions CheckpointKeeper::OptionsFor(const LaunchIdentity& identity,
                                                      uint64_t generation) const {
  const TrainConfig::Checkpoint& config = context_.config.checkpoint;
  checkpoint::SaverOptions options;
  options.dir = config.dir;
  options.keep = config.keep;
  options.group = group_;
  options.file_system = file_system_;
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
  if (context_.world.rank() != 0) {
    return;
  }
  const TrainConfig& config = context_.config;
  RefuseForGood<checkpoint::CheckpointError>([&] {
    checkpoint::CheckReplaceable(config.checkpoint.dir, state_.run,
                                 [&](int64_t step) { return WillSave(config, saved_step_, step); });
  });
}

bool CheckpointKeeper::Save(bool is_last) {
  const int64_t step = state_.step;
  if (!saver_ || saved_step_ == step || is_given_up_) {
    return is_given_up_;
  }
  const Vitals::Within phase(context_.vitals, contract::WorkerPhase::kSaving);
  StopSignal::SetTimeout(kSaveTimeout);
  const Clock::time_point start = Clock::now();
  if (!HasFiniteWeights(state_.model, context_.world)) {
    throw DivergedError("step " + std::to_string(step) +
                        ": its update has made weights infinite or NaN, so no checkpoint of it was "
                        "written. Lower optimizer.lr, and resume from the previous checkpoint");
  }
  std::string path;
  try {
    path = saver_->Save(step, Capture(state_, context_.config));
  } catch (const checkpoint::ClaimHeldError&) {
    throw;
  } catch (const checkpoint::CheckpointError& error) {
    if (error.error_number() == ECANCELED) {
      return GiveUp();
    }
    if (!is_last && !checkpoint::MayPass(error.error_number())) {
      throw;
    }
    TellFailure(error, is_last);
    return IsSomeRankStopping();
  }
  saved_step_ = step;
  context_.stop.plan().NoteSave(Clock::now() - start);
  // Who has asked for one meanwhile gets this one: no step was done since.
  context_.channel.PollStop();
  context_.channel.TakeSave();
  context_.channel.SendCheckpoint(step, path);
  context_.report.Event("checkpoint " + path);
  return IsSomeRankStopping();
}

bool CheckpointKeeper::GiveUp() {
  is_given_up_ = true;
  context_.channel.SendNoCheckpoint(state_.step, "the grace of a stop is over");
  context_.report.Event("warning: the checkpoint of step " + std::to_string(state_.step) +
                        " was given up, because the grace of the stop is over; " + LastSaveText());
  return true;
}

void CheckpointKeeper::TellFailure(const checkpoint::CheckpointError& error, bool is_last) {
  const std::string text = std::string(error.what()) + "; " + LastSaveText();
  if (is_last) {
    throw checkpoint::CheckpointError("the last " + text, error.error_number());
  }
  context_.channel.SendNoCheckpoint(state_.step, text);
  context_.report.Warn(notice_, state_.step,
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
