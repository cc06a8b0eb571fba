#include "launcher/ledger/time_ledger.h"

#include <algorithm>
#include <variant>

namespace fsdprun {
namespace {

Duration AtMost(Duration value, Duration limit) { return std::min(value, limit); }

Duration& In(TimeLedger::Times& times, TimeBucket bucket) {
  return times[static_cast<size_t>(bucket)];
}

}  // namespace

std::string_view TimeBucketName(TimeBucket bucket) {
  static constexpr std::array<std::string_view, kTimeBuckets> kNames = {
      "rendezvous", "prepare", "startup", "productive", "running",  "recompute",
      "hang",       "detect",  "stop",    "operator",   "headless", "other"};
  return kNames[static_cast<size_t>(bucket)];
}

TimeLedger::TimeLedger(job::Phase phase, MonoTime now)
    : began_(now), stage_(Stage::kHeadless), stage_began_(now), since_(now) {
  switch (phase) {
    case job::Phase::kRendezvous:
      stage_ = Stage::kWaiting;  // Whoever comes is welcome: nobody is missed.
      break;
    case job::Phase::kPreparing:
      taken_over_at_ = Stage::kPreparing;
      break;
    case job::Phase::kRunning:
      taken_over_at_ = Stage::kWorking;
      is_adopted_ = true;
      break;
    case job::Phase::kStopping:
      taken_over_at_ = Stage::kStopping;
      break;
    case job::Phase::kReleasing:
    case job::Phase::kFinished:
      stage_ = Stage::kEnding;
      break;
  }
}

// --- What is settled

void TimeLedger::Settle(TimeBucket bucket, MonoTime until) {
  if (until > since_) {
    At(bucket) += until - since_;
    since_ = until;
  }
}

/// From the step that was told last to this one. Of a stretch in which some steps had been done
/// before and others not, each step gets an equal share.
void TimeLedger::SettleSteps(int64_t step, MonoTime until) {
  const Duration took = std::max(until - since_, Duration{});
  longest_step_ = std::max(longest_step_, took);
  double repeated = 0;
  if (step < step_) {
    highest_step_ = step_ = -1;  // They begin again, as with each epoch: nothing is done twice.
  } else if (step <= highest_step_) {
    repeated = 1;
  } else if (step_ < highest_step_) {
    repeated = static_cast<double>(highest_step_ - step_) / static_cast<double>(step - step_);
  }
  const auto share = Duration(static_cast<int64_t>(static_cast<double>(took.count()) * repeated));
  Settle(TimeBucket::kRecompute, since_ + AtMost(share, took));
  Settle(TimeBucket::kProductive, until);
}

TimeBucket TimeLedger::BucketBeforeProgress() const {
  return was_progress_told_ ? TimeBucket::kStartup : TimeBucket::kRunning;
}

TimeBucket TimeLedger::BucketOfStage() const {
  switch (stage_) {
    case Stage::kHeadless:
      return TimeBucket::kHeadless;
    case Stage::kWaiting:
      return TimeBucket::kRendezvous;
    case Stage::kPreparing:
      return TimeBucket::kPrepare;
    case Stage::kWorking:
      return has_progress_ ? TimeBucket::kRunning : BucketBeforeProgress();
    case Stage::kStopping:
      return stop_bucket_;
    case Stage::kEnding:
    case Stage::kOver:
      break;
  }
  return TimeBucket::kOther;
}

void TimeLedger::CloseStage(MonoTime now) {
  if (stage_ != Stage::kOver) {
    Settle(BucketOfStage(), now);
    Sample(now);
  }
}

void TimeLedger::Enter(Stage stage, MonoTime now) {
  stage_ = stage;
  stage_began_ = now;
}

/// Of a program that does not tell of progress it is certain only after a while.
bool TimeLedger::IsCertain(MonoTime now) const {
  if (stage_ != Stage::kWorking) {
    return true;
  }
  return !was_progress_told_ && !failed_at_.has_value() && now - stage_began_ > kLongestOpen;
}

void TimeLedger::Advance(MonoTime now) {
  if (IsCertain(now)) {
    CloseStage(now);
  }
}

void TimeLedger::CutOff(MonoTime now) {
  const MonoTime failed_at = failed_at_.value_or(now);
  if (stage_ == Stage::kWorking && has_progress_) {
    const Duration lost = failed_at - since_;
    const bool hung = longest_step_ > Duration{} && lost > LongestStep();
    Settle(TimeBucket::kRecompute, hung ? since_ + LongestStep() : failed_at);
    Settle(TimeBucket::kHang, failed_at);
  } else {
    Settle(BucketOfStage(), failed_at);
  }
  if (failed_at_.has_value()) {
    Settle(has_hung_ ? TimeBucket::kHang : TimeBucket::kDetect, now);
  }
  CloseStage(now);
}

// --- What happens

void TimeLedger::BeginWorld() {
  has_progress_ = false;
  step_ = -1;
  failed_at_.reset();
  is_adopted_ = false;
}

void TimeLedger::On(const job::News& news, MonoTime now) {
  std::visit([this, now](const auto& what) { Tell(what, now); }, news);
}

void TimeLedger::Tell(const job::WorldFormed& /*formed*/, MonoTime now) {
  CloseStage(now);
  BeginWorld();
  Enter(Stage::kPreparing, now);
}

void TimeLedger::Tell(const job::WorldCommitted& /*committed*/, MonoTime now) {
  CloseStage(now);
  BeginWorld();
  Enter(Stage::kWorking, now);
}

/// Of workers that die because they are stopped nothing new is learnt.
void TimeLedger::Tell(const job::FailureReported& reported, MonoTime now) {
  const bool is_our_doing =
      reported.failure.worker.has_value() && reported.failure.worker->killed_by_us;
  const MonoTime since = now - reported.age;
  if (stage_ == Stage::kWorking && !is_our_doing && (!failed_at_ || since < *failed_at_)) {
    failed_at_ = since;
    has_hung_ = reported.failure.kind == CauseKind::kWorkerHung;
  }
}

void TimeLedger::Tell(const job::WorldStopping& stopping, MonoTime now) {
  CutOff(now);
  stop_bucket_ =
      stopping.kind == job::StopKind::kOperator ? TimeBucket::kOperator : TimeBucket::kStop;
  Enter(Stage::kStopping, now);
}

void TimeLedger::Tell(const job::WorldStopped& /*stopped*/, MonoTime now) {
  CloseStage(now);
  BeginWorld();
  Enter(Stage::kWaiting, now);
}

void TimeLedger::Tell(const job::JobFinished& /*finished*/, MonoTime now) {
  CloseStage(now);
  Enter(Stage::kOver, now);
}

void TimeLedger::Progress(int64_t step, MonoTime now) {
  NodesAreBack(now);
  if (stage_ != Stage::kWorking) {
    return;
  }
  failed_at_.reset();  // It was no reason to stop.
  if (has_progress_) {
    SettleSteps(step, now);
  } else if (is_adopted_) {
    Settle(TimeBucket::kProductive, now);
  } else {
    Settle(IsCertain(now) ? TimeBucket::kRunning : TimeBucket::kStartup, now);
    repeated_steps_ += std::max<int64_t>(0, highest_step_ - step + 1);
  }
  has_progress_ = true;
  was_progress_told_ = true;
  step_ = step;
  highest_step_ = std::max(highest_step_, step);
  Sample(now);
}

void TimeLedger::NodesAreBack(MonoTime now) {
  if (stage_ == Stage::kHeadless) {
    CloseStage(now);
    Enter(taken_over_at_, now);
  }
}

void TimeLedger::Decide(MonoTime now) {
  if (stage_ != Stage::kEnding && stage_ != Stage::kOver) {
    CloseStage(now);
    Enter(Stage::kEnding, now);
  }
}

// --- What is asked

Duration TimeLedger::Wall(MonoTime now) const {
  return (stage_ == Stage::kOver ? since_ : std::max(now, since_)) - began_;
}

TimeLedger::Times TimeLedger::All(MonoTime now) const {
  Times times = times_;
  const Duration open = began_ + Wall(now) - since_;
  if (stage_ != Stage::kWorking || !has_progress_) {
    In(times, BucketOfStage()) += open;
    return times;
  }
  const Duration step = longest_step_ > Duration{} ? AtMost(open, LongestStep()) : open;
  const bool is_repeated = step_ < highest_step_;
  In(times, is_repeated ? TimeBucket::kRecompute : TimeBucket::kProductive) += step;
  In(times, TimeBucket::kHang) += open - step;
  return times;
}

void TimeLedger::Sample(MonoTime now) {
  if (!samples_.empty() && now - samples_.back().first < kSamplePause) {
    return;
  }
  samples_.emplace_back(now, At(TimeBucket::kProductive));
  while (samples_.size() > 1 && samples_[1].first <= now - kLongestWindow) {
    samples_.pop_front();
  }
}

std::optional<double> TimeLedger::Goodput(Duration window, MonoTime now) const {
  const Duration wall = Wall(now);
  if (!was_progress_told_ || wall <= Duration{}) {
    return std::nullopt;
  }
  Duration before{};
  const Duration length = AtMost(window, wall);
  const MonoTime from = began_ + wall - length;
  for (const auto& [at, productive] : samples_) {
    if (length < wall && at <= from) {
      before = productive;
    }
  }
  Times times = All(now);
  const Duration productive = In(times, TimeBucket::kProductive) - before;
  return std::clamp(ToSeconds(productive) / ToSeconds(length), 0.0, 1.0);
}

}  // namespace fsdprun
