// Once the job is over: whether there is another run of it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/run/slurm_queue.h"

namespace fsdprun {
namespace {

/// How long Slurm's controller is asked again and again: it may be failing over to another machine.
/// Not much longer than the job has left; Slurm ends it then by itself.
constexpr Duration kShortestTry = std::chrono::seconds(20);
constexpr Duration kLongestTry = std::chrono::minutes(5);
constexpr Duration kAfterLimit = std::chrono::seconds(30);
constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(10);
/// Until Slurm ends a job that was requeued.
constexpr Duration kKillTimeout = std::chrono::seconds(60);

RunEnd::Kind KindOf(const std::optional<JobOutcome>& outcome) {
  if (!outcome.has_value()) {
    return RunEnd::Kind::kFailed;
  }
  switch (outcome->kind) {
    case OutcomeKind::kSucceeded:
      return RunEnd::Kind::kSucceeded;
    case OutcomeKind::kStoppedBySignal:
      return RunEnd::Kind::kStopped;
    case OutcomeKind::kFailed:
      break;
  }
  return RunEnd::Kind::kFailed;
}

}  // namespace

RunEnd SlurmQueue::EndOf(const std::optional<JobOutcome>& outcome, const JobMachine& job) const {
  RunEnd end{.kind = KindOf(outcome),
             .signal = signal_,
             .is_before_limit = is_before_limit_,
             .first_step = first_step_,
             .step = job.progress().step,
             .total = job.progress().total};
  if (outcome.has_value()) {
    end.workers = outcome->ends;
  }
  if (end.kind == RunEnd::Kind::kStopped) {
    end.signal = outcome->signal;
  } else if (end.signal == 0) {
    end.signal = job.operator_signal().value_or(0);
  }
  if (end.signal == 0) {
    end.signal = passed_signal_;
    end.was_passed_on = passed_signal_ != 0;
  }
  if (end.signal == 0 && end.total > 0) {  // MayBeUnfinished() decides by steps.
    end.signal = late_signal_;
  }
  return end;
}

void SlurmQueue::EndRun(const std::optional<JobOutcome>& outcome, const JobMachine& job) {
  BeginEnd(outcome, job);
  is_awaited_ = true;
  while (!is_over_) {  // Others may stop the loop, too.
    loop_.Run();
  }
  if (!goes_on_) {
    history_.Forget();
  }
}

void SlurmQueue::BeginEnd(const std::optional<JobOutcome>& outcome, const JobMachine& job) {
  if (end_.has_value()) {
    return;
  }
  loop_.Cancel(timer_);
  loop_.Cancel(answer_);
  end_ = EndOf(outcome, job);
  if (!MayBeUnfinished(plan_.requeue, *end_)) {
    FinishEnd();
    return;
  }
  try_until_ = MonoNow() + TimeToTry();
  pause_ = kFirstPause;
  AskWhy();
}

Duration SlurmQueue::TimeToTry() const {
  return limit_.has_value()
             ? std::clamp<Duration>(*limit_ + kAfterLimit - MonoNow(), kShortestTry, kLongestTry)
             : kLongestTry;
}

void SlurmQueue::AskWhy() {
  Ask([this](const absl::StatusOr<SlurmJobRecord>& record) { OnWhy(record); });
}

void SlurmQueue::OnWhy(const absl::StatusOr<SlurmJobRecord>& record) {
  if (is_over_) {
    return;
  }
  if (!record.ok() && RequeuesUnasked(plan_.requeue, *end_, has_other_signal_) &&
      !absl::IsNotFound(record.status())) {
    Requeue();
  } else if (!record.ok()) {
    TryAgain(record.status());
  } else if (runs_.has_value()) {
    Decide(*record, *runs_);
  } else {
    end_->is_short = IsShort(*record, Now(*record));
    history_.Remember(*end_, job_.restarts, [this, record = *record](const RunsInARow& runs) {
      runs_ = runs;
      if (!is_over_) {
        Decide(record, runs);
      }
    });
  }
}

void SlurmQueue::Decide(const SlurmJobRecord& record, const RunsInARow& runs) {
  const RequeueDecision decision = DecideRequeue(plan_.requeue, *end_, record, job_.restarts, runs);
  if (std::exchange(decided_, decision.text) != decision.text && !decision.text.empty()) {
    hooks_.print(decision.text);
  }
  if (decision.requeues) {
    slurm_ends_it_ = slurm_ends_it_ || record.phase != SlurmPhase::kRunning;
    Requeue();
    return;
  }
  goes_on_ = record.restarts > job_.restarts;
  if (goes_on_ && has_asked_) {
    AwaitSlurm();  // It was done, although scontrol has failed.
  } else {
    FinishEnd();
  }
}

// Note [The end of a requeued job]
// Slurm ends what is left of the run by signals. Until then, what follows this launcher in the
// batch script must not begin: it is for the end of the job. The first signal may come before
// scontrol has ended.
void SlurmQueue::Requeue() {
  has_asked_ = true;
  Call({"scontrol", "requeue", job_.name},
       [this](const absl::Status& status) { OnRequeued(status); });
}

void SlurmQueue::OnRequeued(const absl::Status& status) {
  if (is_over_) {
    return;
  }
  if (!status.ok() && (IsRefusal(status.message()) || absl::IsNotFound(status))) {
    GiveUp(status.message());
  } else if (!status.ok()) {
    TryAgain(status);  // It may have been done all the same, which the controller says then.
  } else {
    goes_on_ = true;
    AwaitSlurm();
  }
}

void SlurmQueue::AwaitSlurm() {
  if (slurm_ends_it_) {
    FinishEnd();
    return;
  }
  awaits_slurm_ = true;
  loop_.Cancel(timer_);
  timer_ = loop_.At(MonoNow() + kKillTimeout, [this] { FinishEnd(); });
}

void SlurmQueue::TryAgain(const absl::Status& why) {
  if (absl::IsNotFound(why) || MonoNow() + pause_ >= try_until_) {
    GiveUp(why.message());
    return;
  }
  if (!std::exchange(has_told_of_trouble_, true)) {
    const auto left = std::chrono::floor<std::chrono::seconds>(try_until_ - MonoNow());
    hooks_.print(absl::StrCat("cannot requeue job ", job_.name, " yet: ", why.message(),
                              "; trying again for ", left.count(), " s"));
  }
  loop_.Cancel(timer_);
  timer_ = loop_.At(MonoNow() + pause_, [this] { AskWhy(); });
  pause_ = std::min(pause_ * 2, kLongestPause);
}

void SlurmQueue::GiveUp(absl::string_view why) {
  hooks_.print(absl::StrCat("cannot requeue job ", job_.name, ": ", why,
                            "; to go on, scontrol requeue ", job_.name, ", or submit it again"));
  FinishEnd();
}

void SlurmQueue::FinishEnd() {
  loop_.Cancel(timer_);
  loop_.Cancel(answer_);
  is_over_ = true;
  if (is_awaited_) {
    loop_.Stop();
  }
}

}  // namespace fsdprun
