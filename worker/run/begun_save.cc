// Of CheckpointKeeper: saves that are begun, and end beside the steps.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include "worker/checkpoint/channel.h"
#include "worker/run/checkpoint_keeper.h"
#include "worker/run/save_channel.h"
#include "worker/run/stop_signal.h"
#include "worker/world/vote.h"

namespace fsdprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

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

bool CheckpointKeeper::Finish(bool is_wanted, bool is_last_left) {
  FinishBegun(is_last_left ? SaveKind::kBeforeLast : SaveKind::kPeriodic, is_wanted);
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

/// The store at which the ranks met need not live as long as they; then they save between steps.
void CheckpointKeeper::Reconnect() {
  if (is_async_ && must_reconnect_) {
    must_reconnect_ = false;
    const std::shared_ptr<checkpoint::Channel> channel = MakeSaveChannel(group_, kReconnectTimeout);
    is_async_ = channel != nullptr;
    saver_->SetBackground(channel);
  }
}

}  // namespace fsdprun::worker
