#include "launcher/run/slurm_queue.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "launcher/slurm/first_look.h"
#include "launcher/slurm/requeue_notice.h"

namespace fsdprun {
namespace {

/// A controller that is busy or restarts answers later.
constexpr Duration kLookRetry = std::chrono::seconds(60);
/// Where there is no scontrol, as in a container, there mostly never is.
constexpr Duration kSearchRetry = std::chrono::minutes(10);
/// The same while nodes may wait in vain for others that were stopped, too.
constexpr Duration kDoubtRetry = std::chrono::seconds(1);
constexpr size_t kLongestAnswer = 1u << 20;

LimitMargin MarginIn(const LaunchPlan& plan) {
  LimitMargin margin;
  margin.grace_s = std::chrono::ceil<std::chrono::seconds>(plan.shutdown_timeout).count();
  if (plan.requeue_margin.has_value()) {
    margin.seconds = std::chrono::ceil<std::chrono::seconds>(*plan.requeue_margin).count();
  }
  return margin;
}

}  // namespace

SlurmQueue::Means SlurmQueue::UsualMeans(EventLoop& loop, const Environment& environment) {
  return {.find_scontrol = [environment] { return LocateProgram("scontrol", environment); },
          .files = std::make_unique<FileThread>(loop)};
}

SlurmQueue::SlurmQueue(EventLoop& loop, const LaunchPlan& plan, const Environment& environment,
                       Hooks hooks, Means means)
    : loop_(loop),
      plan_(plan),
      job_(*plan.scheduler_job),
      environment_(ShowJobEnvironment(environment)),
      margin_(MarginIn(plan)),
      hooks_(std::move(hooks)),
      call_timeout_(means.call_timeout),
      death_timeout_(means.death_timeout),
      doubt_timeout_(means.doubt_timeout),
      scontrol_(loop, std::move(means.find_scontrol)),
      history_(loop, plan, environment, std::move(means.files), means.files_timeout) {
  if (plan_.requeue != RequeueMode::kNever) {
    LookAfter(FirstLook(job_.name, environment_));
  }
}

SlurmQueue::~SlurmQueue() {
  loop_.Cancel(timer_);
  loop_.Cancel(answer_);
  loop_.Cancel(call_limit_);
  if (command_ != nullptr) {
    command_->Kill();
  }
}

void SlurmQueue::NoteSignal(int signal) {
  if (has_outcome_) {
    late_signal_ = late_signal_ == 0 && signal != SIGINT ? signal : late_signal_;
  } else if (signal_ == 0) {
    signal_ = signal;
  }
  has_other_signal_ = has_other_signal_ || !IsNotice(signal);
  if (!end_.has_value()) {
    loop_.Cancel(timer_);  // There is nothing left to look after.
  } else if (IsNotice(signal)) {
    return;  // Slurm ends no job by one.
  } else if (IsNews(SIGTERM, signal) || awaits_slurm_) {
    FinishEnd();  // An operator's impatience, or what was waited for.
  } else {
    slurm_ends_it_ = slurm_ends_it_ || has_asked_;
  }
}

void SlurmQueue::NotePassedSignal(int signal) {
  passed_signal_ = passed_signal_ == 0 && !has_outcome_ ? signal : passed_signal_;
}

void SlurmQueue::OnStep(const JobMachine& job) {
  has_outcome_ = job.outcome().has_value();
  if (first_step_ < 1) {
    first_step_ = job.progress().step;
  }
  const uint64_t doubtful = job.doubtful_signals();
  if (std::exchange(doubtful_signals_, doubtful) != doubtful && !end_.has_value() &&
      !hooks_.is_stopping()) {
    in_doubt_until_ = MonoNow() + doubt_timeout_;
    if (!is_looking_) {
      LookAfter(std::max<Duration>(looked_at_ + kDoubtRetry - MonoNow(), Duration::zero()));
    }
  }
}

// --- While the job runs

void SlurmQueue::LookAfter(Duration pause) {
  loop_.Cancel(timer_);
  timer_ = loop_.At(MonoNow() + pause, [this] { Look(); });
}

void SlurmQueue::Look() {
  is_looking_ = true;
  looked_at_ = MonoNow();
  Ask([this](const absl::StatusOr<SlurmJobRecord>& record) { OnLook(record); });
}

void SlurmQueue::OnLook(const absl::StatusOr<SlurmJobRecord>& record) {
  is_looking_ = false;
  if (hooks_.is_stopping()) {
    return;
  }
  if (!record.ok()) {
    PlanLook(absl::IsNotFound(record.status()) ? kSearchRetry : kLookRetry);
  } else if (EndsForAll(*record)) {
    hooks_.stop(SIGTERM);
  } else {
    UseLook(*record);
  }
}

// `pause`: unset if nothing but a doubt needs another look. What was said in a doubt may be of the
// time before the signal.
void SlurmQueue::PlanLook(std::optional<Duration> pause) {
  if (is_in_doubt()) {
    pause = std::min(pause.value_or(kDoubtRetry), kDoubtRetry);
  }
  if (pause.has_value()) {
    LookAfter(*pause);
  }
}

void SlurmQueue::UseLook(const SlurmJobRecord& record) {
  const int64_t now = Now(record);
  limit_ = !record.end_time.has_value()
               ? std::nullopt
               : std::optional(MonoNow() + std::chrono::seconds(*record.end_time - now));
  const std::optional<int64_t> seconds =
      SecondsToLimit(plan_.requeue, margin_, record, now, first_step_ >= 1);
  if (!seconds.has_value()) {
    PlanLook(std::nullopt);
  } else if (*seconds == 0) {
    OnLimit(record, now);
  } else {
    TellOfLimit(record, now, *seconds);
    PlanLook(std::chrono::seconds(*seconds));
  }
}

void SlurmQueue::TellOfLimit(const SlurmJobRecord& record, int64_t now, int64_t seconds) {
  if (!limit_.has_value()) {
    return;
  }
  if (const std::string warning = MarginWarning(margin_, record);
      !warning.empty() && !std::exchange(has_warned_of_margin_, true)) {
    Log(LogLevel::kWarning, warning);
  }
  if (!std::exchange(has_told_, true)) {
    hooks_.print(RequeueNotice(plan_.requeue, job_.name, record, now, MarginOf(margin_, record)));
  }
  Log(LogLevel::kInfo,
      absl::StrCat("the time limit of job ", job_.name, " ends in ", *record.end_time - now,
                   " s; looking again in ", seconds, " s"));
}

// A signal that one agent has told of was not for its node alone.
bool SlurmQueue::EndsForAll(const SlurmJobRecord& record) const {
  return is_in_doubt() && (record.phase == SlurmPhase::kEnding || record.preempt_time.has_value());
}

void SlurmQueue::OnLimit(const SlurmJobRecord& record, int64_t now) {
  is_before_limit_ = true;
  hooks_.print(absl::StrCat("the time limit of job ", job_.name, " ends in ",
                            *record.end_time - now,
                            " s: stopping the workers, so that they can save"));
  hooks_.stop(SIGTERM);
}

int64_t SlurmQueue::Now(const SlurmJobRecord& record) const {
  const auto uptime = std::chrono::floor<std::chrono::seconds>(MonoNow() - began_at_);
  return ControllerTime(record, static_cast<int64_t>(std::time(nullptr)), uptime.count());
}

// --- scontrol

void SlurmQueue::Ask(std::function<void(const absl::StatusOr<SlurmJobRecord>&)> use) {
  Call(ShowJobCommand(job_.name), [this, use = std::move(use)](const absl::Status& status) {
    use(status.ok() ? ReadJobRecord(said_) : absl::StatusOr<SlurmJobRecord>(status));
  });
}

// Takes the place of a call that has not ended.
void SlurmQueue::Call(const std::vector<std::string>& command,
                      std::function<void(const absl::Status&)> done) {
  loop_.Cancel(answer_);
  loop_.Cancel(call_limit_);
  if (command_ != nullptr) {
    command_->Kill();
  }
  said_.clear();
  is_late_ = false;
  call_limit_ =
      loop_.At(MonoNow() + call_timeout_, [this, command, done] { OnLate(command, done); });
  scontrol_.Use([this, command, done](const ProgramLookup::Found& scontrol) {
    if (!is_over_) {
      StartCall(scontrol, command, done);
    }
  });
}

void SlurmQueue::StartCall(const ProgramLookup::Found& scontrol,
                           const std::vector<std::string>& command,
                           const std::function<void(const absl::Status&)>& done) {
  if (!scontrol.ok()) {
    OnNotStarted(scontrol.status(), done);
    return;
  }
  ChildCommand::Hooks hooks;
  hooks.on_lines = [this](absl::string_view lines) {
    if (said_.size() < kLongestAnswer) {
      absl::StrAppend(&said_, lines);
    }
  };
  hooks.has_room = [] { return true; };
  hooks.on_end = [this, command, done](int code) { OnCallEnd(command, code, done); };
  hooks.on_failure = [this, done](const absl::Status& why) {
    scontrol_.Forget();  // It may have moved since it was found.
    OnNotStarted(absl::UnavailableError(why.message()), done);
  };
  command_ = std::make_unique<ChildCommand>(loop_, ChildCommand::Reads::kAll, std::move(hooks));
  std::vector<std::string> words = command;
  words.front() = *scontrol;
  command_->Start(words, environment_);
}

void SlurmQueue::OnNotStarted(const absl::Status& why,
                              const std::function<void(const absl::Status&)>& done) {
  loop_.Cancel(call_limit_);
  Answer(done, why);
}

void SlurmQueue::OnLate(const std::vector<std::string>& command,
                        const std::function<void(const absl::Status&)>& done) {
  const bool was_killed = std::exchange(is_late_, true);
  const std::string words = absl::StrJoin(command, " ");
  const std::string limit = absl::StrCat(" has not ended within ", ToSeconds(call_timeout_), " s");
  const std::string not_started = absl::StrCat(words, " was not started: ");
  if (command_ != nullptr && command_->is_starting()) {
    command_->Kill();
    scontrol_.Forget();  // The search finds out whether that file system answers again.
    Answer(done, absl::UnavailableError(absl::StrCat(not_started, "to open it", limit,
                                                     "; see which file system does not answer")));
  } else if (command_ == nullptr || !command_->is_running()) {
    scontrol_.Drop();
    Answer(done, absl::UnavailableError(
                     absl::StrCat(not_started, "the search for ", command.front(), " on PATH",
                                  limit, "; see which of its folders does not answer")));
  } else if (was_killed) {  // It waits for a file system: nobody can say until when.
    command_->Kill();
    Answer(done, absl::UnavailableError(absl::StrCat(
                     words, limit, ", nor when it was killed; see which file system on ",
                     "this node does not answer")));
  } else {
    command_->Signal(SIGKILL);
    call_limit_ =
        loop_.At(MonoNow() + death_timeout_, [this, command, done] { OnLate(command, done); });
  }
}

void SlurmQueue::OnCallEnd(const std::vector<std::string>& command, int code,
                           const std::function<void(const absl::Status&)>& done) {
  loop_.Cancel(call_limit_);
  if (code == 0) {
    Answer(done, absl::OkStatus());
    return;
  }
  const std::string end =
      is_late_ ? absl::StrCat("has not ended within ", ToSeconds(call_timeout_), " s")
               : absl::StrCat("ended with ", code);
  Answer(done, absl::UnavailableError(absl::StrCat(absl::StrJoin(command, " "), " ", end, ": ",
                                                   absl::StripAsciiWhitespace(said_))));
}

// Later: the command is still at work, and what follows may start another.
void SlurmQueue::Answer(const std::function<void(const absl::Status&)>& done,
                        const absl::Status& status) {
  answer_ = loop_.At(MonoNow(), [done, status] { done(status); });
}

}  // namespace fsdprun
