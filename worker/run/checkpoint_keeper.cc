#include "worker/run/checkpoint_keeper.h"

#include <algorithm>
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

// How long a stop waits for a save; see StopSignal. A save ends by itself; the grace may allow
// minutes.
constexpr auto kSaveTimeout = std::chrono::minutes(10);
// How long a rank waits for the end of its part until it asks the others; they may wait for it in a
// collective meanwhile. A part of the margin that a stop leaves of its grace (StopPlan): what was
// begun must be given up, and that told, before the process is killed.
constexpr std::chrono::milliseconds kAskInterval = std::chrono::milliseconds(250);
// Training waits for it.
constexpr std::chrono::milliseconds kReconnectTimeout = std::chrono::seconds(5);

std::string Seconds(Clock::duration time) {
  return std::to_string(std::chrono::round<std::chrono::seconds>(time).count()) + " s";
}

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
    saved_step_ = resume();
    return;
  }
  const int64_t publications = checkpoint::CountPublications(dir, group_);
  saved_step_ = resume();
  CheckSavedNames();
  may_be_restarted_ = !identity.launch.job_id.empty();
  checkpoint::SaverOptions options = OptionsFor(identity, generation);
  options.background = context_.config.checkpoint.is_async ? MakeSaveChannel(group_) : nullptr;
  is_async_ = options.background != nullptr;
  saver_ = std::make_unique<checkpoint::Saver>(options);
  if (checkpoint::CountPublications(dir, group_) != publications) {
    saved_step_ = resume();
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
  const bool is_coming = begun_step_ == step && !is_last;
  if (!saver_ || is_coming || (!is_saving() && (saved_step_ == step || is_given_up_))) {
    return is_given_up_;
  }
  const Vitals::Within phase(context_.vitals, contract::WorkerPhase::kSaving);
  StopSignal::SetTimeout(kSaveTimeout);
  interval_.Begin(Clock::now());
  const bool has_waited = is_saving();
  if (!MakeWay(is_last) || saved_step_ == step || is_given_up_) {
    return is_given_up_ || IsSomeRankStopping();
  }
  CheckFiniteWeights();
  const bool may_begin = !is_last && step < context_.config.train.steps;
  if (may_begin) {
    Reconnect();
  }
  if (may_begin && is_async_) {
    Begin();
    return has_waited && IsSomeRankStopping();
  }
  SaveNow(is_last);
  return is_given_up_ || IsSomeRankStopping();
}

void CheckpointKeeper::CheckFiniteWeights() const {
  if (!HasFiniteWeights(state_.model, context_.world)) {
    throw DivergedError("step " + std::to_string(state_.step) +
                        ": its update has made weights infinite or NaN, so no checkpoint of it was "
                        "written. Lower optimizer.lr, and resume from the previous checkpoint");
  }
}

void CheckpointKeeper::SaveNow(bool is_last) {
  *is_cancelled_ = false;
  Tell(state_.step, is_last ? SaveKind::kLast : SaveKind::kPeriodic, /*is_wanted=*/true,
       [&] { return saver_->Save(state_.step, Capture(state_, context_.config)); });
}

void CheckpointKeeper::Begin() {
  const int64_t step = state_.step;
  *is_cancelled_ = false;
  pace_.Begin(Clock::now());
  try {
    saver_->Begin(step, Capture(state_, context_.config));
  } catch (const checkpoint::CheckpointError& error) {
    TellFailure(step, error, SaveKind::kPeriodic, /*is_wanted=*/true);
    return;
  }
  begun_step_ = step;
  is_begun_given_up_ = false;
  context_.stop.SetSaving(true);
  // Who has asked for one meanwhile gets this one: no step was done since.
  context_.channel.PollStop();
  context_.channel.TakeSave();
}

bool CheckpointKeeper::IsWriting() const { return is_saving() && !saver_->HasEnded(); }

bool CheckpointKeeper::HasLostTheWay() const {
  return is_saving() && !is_begun_given_up_ && saver_->HasLostTheWay();
}

void CheckpointKeeper::CancelBegun(const checkpoint::CheckpointError& why) {
  is_begun_given_up_ = true;
  must_reconnect_ = true;
  // In this order, so that `why` is what this rank's part says, and not that its file was
  // cancelled.
  saver_->Cancel(why);
  *is_cancelled_ = true;
}

void CheckpointKeeper::GiveUpBegun() {
  CancelBegun(checkpoint::CheckpointError(
      "a rank has lost the way to the job's store, over which the ranks tell each other how their "
      "parts have ended",
      checkpoint::kChannelLost));
}

bool CheckpointKeeper::MayCopy() const { return begun_step_ && state_.step <= *begun_step_ + 1; }

std::chrono::milliseconds CheckpointKeeper::StepTimeout() const {
  return MayCopy() ? kSaveTimeout : context_.stop.step_timeout();
}

Clock::duration CheckpointKeeper::AwaitCopy() {
  const Clock::time_point start = Clock::now();
  if (is_saving()) {
    const Vitals::Within phase(context_.vitals, contract::WorkerPhase::kSaving);
    saver_->AwaitCopy();
  }
  return Clock::now() - start;
}

bool CheckpointKeeper::Finish(bool is_wanted) {
  FinishBegun(SaveKind::kPeriodic, is_wanted);
  return is_given_up_;
}

void CheckpointKeeper::FinishBegun(SaveKind kind, bool is_wanted) {
  const int64_t step = *begun_step_;
  begun_step_.reset();
  context_.stop.SetSaving(false);
  Tell(step, kind, is_wanted, [&] { return saver_->Finish(); });
}

void CheckpointKeeper::FinishBeforeError() {
  if (!is_saving()) {
    return;
  }
  StopSignal::SetTimeout(kSaveTimeout);
  if (!AwaitBegun(/*is_last=*/false)) {
    WarnIfLate();
    return;
  }
  try {
    Finish(/*is_wanted=*/true);
  } catch (const checkpoint::CheckpointError& error) {
    context_.report.Warn(notice_, state_.step, error.what());
  }
}

void CheckpointKeeper::WarnIfLate() {
  const Clock::time_point now = Clock::now();
  if (IsWriting() && pace_.MustTell(now)) {
    FaultNotice once;
    context_.report.Warn(once, state_.step,
                         "the checkpoint of step " + std::to_string(*begun_step_) +
                             " has been in the making for " + Seconds(pace_.Taken(now)) +
                             "; is the file system of " + context_.config.checkpoint.dir +
                             " hung? No other is written until it has ended; " + LastSaveText());
  }
}

bool CheckpointKeeper::AwaitBegun(bool is_last) {
  enum { kHasEnded, kIsWriting, kMustGoOn, kIsLost, kGraceIsOver };
  const std::chrono::milliseconds timeout =
      std::chrono::seconds(context_.config.parallel.timeout_seconds);
  const std::chrono::milliseconds interval = std::min(kAskInterval, timeout / 4);
  const Clock::time_point deadline = pace_.WaitUntil(Clock::now());
  while (true) {
    const bool has_ended = saver_->AwaitEnd(Clock::now() + interval);
    const bool must_go_on = !is_last && Clock::now() >= deadline;
    const bool is_over = !is_begun_given_up_ && context_.stop.MustGiveUpSave();
    const int answer = is_over           ? kGraceIsOver
                       : HasLostTheWay() ? kIsLost
                       : has_ended       ? kHasEnded
                       : must_go_on      ? kMustGoOn
                                         : kIsWriting;
    const int highest = Vote(context_.world, answer).Highest();
    if (highest == kGraceIsOver) {
      CancelBegun(checkpoint::CheckpointError("the grace of the stop is over", ECANCELED));
      continue;
    }
    if (highest == kIsLost) {
      GiveUpBegun();
      continue;
    }
    if (highest != kIsWriting) {
      return highest == kHasEnded;
    }
    context_.report.Warn(wait_notice_, state_.step,
                         "training waits for the checkpoint of step " +
                             std::to_string(*begun_step_) +
                             ", which is still being written, before that of step " +
                             std::to_string(state_.step) + " can begin");
    WarnIfLate();
  }
}

bool CheckpointKeeper::MakeWay(bool is_last) {
  if (!is_saving()) {
    return true;
  }
  const int64_t begun = *begun_step_;
  if (AwaitBegun(is_last)) {
    FinishBegun(is_last ? SaveKind::kBeforeLast : SaveKind::kPeriodic,
                /*is_wanted=*/begun == state_.step);
    return true;
  }
  WarnIfLate();
  const std::string text = "checkpoint of step " + std::to_string(state_.step) +
                           " failed: that of step " + std::to_string(begun) +
                           " has been in the making for " + Seconds(pace_.Taken(Clock::now()));
  TellFailure(state_.step, checkpoint::CheckpointError(text, ETIMEDOUT), SaveKind::kPeriodic,
              /*is_wanted=*/true);
  return false;
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
  saved_step_ = step;
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
  if (kind == SaveKind::kLast) {
    throw checkpoint::CheckpointError("the last " + text, error.error_number());
  }
  if (is_wanted) {
    context_.channel.SendNoCheckpoint(step, text);
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

/// The store at which the ranks met need not live as long as they; then they save between steps.
void CheckpointKeeper::Reconnect() {
  if (is_async_ && must_reconnect_) {
    must_reconnect_ = false;
    const std::shared_ptr<checkpoint::Channel> channel = MakeSaveChannel(group_, kReconnectTimeout);
    is_async_ = channel != nullptr;
    saver_->SetBackground(channel);
  }
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
