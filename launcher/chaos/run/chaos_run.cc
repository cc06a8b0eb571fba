#include "launcher/chaos/run/chaos_run.h"

#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/chaos/plan/length.h"

namespace fsdprun::chaos {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(20);
/// For what was said last, if nobody reads it.
constexpr Duration kLastWords = std::chrono::seconds(2);
/// Whoever waits for the report may be ended by a signal.
constexpr Duration kSignalInterval = std::chrono::milliseconds(100);
/// Of a job of Slurm, whatever is started in it.
constexpr char kSlurmJob[] = "SLURM_JOB_ID";
constexpr char kNoSuspending[] =
    "cannot be suspended: nobody would lift its faults, or pass on what nodes say to their "
    "coordinator; Ctrl-C ends it";

}  // namespace

ChaosRun::ChaosRun(Setting setting, const Environment& environment)
    : setting_(std::move(setting)),
      environment_(environment),
      signals_(
          loop_,
          {{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGXCPU},
           [this](int signal) { Carry(course_.OnSignal(signal, Now())); }},
          // SIGTTOU never comes: a terminal with tostop lets whoever blocks it write.
          {{SIGTSTP, SIGTTOU, SIGUSR1, SIGUSR2}, [this](int signal) { OnOtherSignal(signal); }}),
      console_({.out_fd = setting_.options.is_json ? setting_.report_fd : STDERR_FILENO}),
      campaign_({.plan = setting_.plan,
                 .patience = setting_.options.patience,
                 .settle = setting_.options.settle,
                 .duration = setting_.options.duration,
                 .overlaps = setting_.options.overlaps,
                 .needs_full_world = setting_.wrapped.has_value()}),
      course_({.starts_job = setting_.wrapped.has_value(),
               .until_end = setting_.options.until_end,
               .has_verify = !setting_.options.verify.empty(),
               .is_in_slurm = environment.count(kSlurmJob) > 0}),
      injector_(loop_, {.fill = setting_.options.fill,
                        .fill_leave = setting_.options.fill_leave,
                        .corrupt = setting_.options.corrupt,
                        .find = [this] { return FindProcesses(); },
                        .on_killed =
                            [this](int64_t pid) {
                              if (launches_ != nullptr) {
                                launches_->OnKilled(pid);
                              }
                            },
                        .on_late =
                            [this](size_t index, const std::string& what) {
                              campaign_.OnDoneTooLate(index, what);
                              Say(absl::StrCat("fault ", index + 1, " was given up, but ", what));
                            }}),
      told_(setting_.plan.faults.size()) {}

ChaosRun::~ChaosRun() = default;

int ChaosRun::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    outcome_.could_not = std::string(status.message());
    Say(outcome_.could_not);
    if (setting_.options.is_json) {
      ReportAsJson(OutcomeNow());
    }
    console_.Close(MonoNow() + kLastWords);
    return 1;
  }
  watch_ = std::make_unique<JobWatch>(
      loop_, WhichJob(),
      JobWatch::Hooks{[this](const JobView& view) { OnView(view); },
                      [this](const std::string& what) { campaign_.OnFailure(what); },
                      [this](int code) { finished_code_ = code; }});
  Tick();
  loop_.Run();
  watch_.reset();
  return Report() && Judge(campaign_, OutcomeNow()).is_good ? 0 : 1;
}

Outcome ChaosRun::OutcomeNow() const {
  Outcome outcome = outcome_;
  outcome.is_interrupted = course_.is_interrupted();
  outcome.job_runs_on = course_.job_runs_on();
  return outcome;
}

// What a disk has been filled with may have to go before it takes a line.
bool ChaosRun::Report() {
  injector_.Settle(MonoNow() + kLastWords);
  const Outcome outcome = OutcomeNow();
  bool is_delivered = true;
  if (setting_.options.is_json) {
    is_delivered = ReportAsJson(outcome);
  } else {
    Say(ReportText(campaign_, outcome));
  }
  console_.Close(MonoNow() + kLastWords);
  return is_delivered;
}

// All faults are lifted, and whoever pages through it takes their time.
bool ChaosRun::ReportAsJson(const Outcome& outcome) {
  // It may be where all else is said, too.
  console_.WaitWritten(ConsoleStream::kOut, MonoNow() + kSignalInterval);
  const uint64_t dropped = console_.ProgressOf(ConsoleStream::kOut).dropped;
  bool is_written = setting_.report_fd >= 0;
  if (is_written) {
    console_.WriteLines(ConsoleStream::kOut, ReportJson(campaign_, outcome));
    do {
      is_written = console_.WaitWritten(ConsoleStream::kOut, MonoNow() + kSignalInterval);
    } while (!is_written && signals_.TakePending() == 0);
  }
  if (is_written && console_.ProgressOf(ConsoleStream::kOut).dropped == dropped) {
    return true;
  }
  Say(absl::StrCat("the report could not be written to standard output: ",
                   ReportText(campaign_, outcome)));
  return false;
}

MonoTime ChaosRun::Now() {
  const MonoTime now = MonoNow();
  if (const Duration slept = awake_.Advance(now); slept > Duration::zero()) {
    Say(absl::StrCat("stood still for ", LengthText(slept),
                     " (stopped, or with its machine): that time does not count"));
  }
  return awake_.At(now);
}

void ChaosRun::Tick() {
  if (is_finished_) {
    return;
  }
  loop_.At(MonoNow() + kTick, [this] { Tick(); });
  Carry(campaign_.Step(Now(), view_));
  TellAnswers();
  LookForTheEnd();
}

void ChaosRun::OnView(JobView view) {
  Now();
  view.asked_at = awake_.At(view.asked_at);
  if (view.is_there) {
    seen_at_ = view.asked_at;
  }
  if (view.answers) {
    view_ = view;
    outcome_.view = view;
    outcome_.run_id = view.run_id;
    WarnOfRestarts();
  } else {
    view_.answers = false;
    view_.is_there = view.is_there;
    view_.is_replaced = view.is_replaced;
  }
}

void ChaosRun::WarnOfRestarts() {
  if (view_.Runs() && !std::exchange(is_warned_, true) && !setting_.options.duration.has_value()) {
    SayWarning(RestartWarning(setting_.plan, view_));
  }
}

void ChaosRun::LookForTheEnd() {
  if (is_finished_) {
    return;
  }
  const std::optional<JobOver> over =
      OverByTrace(form(),
                  {.is_there = view_.is_there,
                   .is_replaced = view_.is_replaced,
                   .seen_at = seen_at_,
                   .exit_code = finished_code_.has_value() ? finished_code_ : view_.exit_code,
                   .has_run = campaign_.began_at().has_value()},
                  setting_.options.patience, Now());
  if (over.has_value()) {
    StartsJob() ? OnJobOfCommandOver(*over) : OnJobEnd(*over);
  }
}

// What the command does then is its own affair: its end is waited for.
void ChaosRun::OnJobOfCommandOver(const JobOver& over) {
  injector_.GiveUpBeginnings();
  Carry(over.exit_code.has_value() ? campaign_.OnJobOver(Now(), over.exit_code)
                                   : campaign_.OnJobGone(Now()));
  TellAnswers();
  if (view_.is_replaced && !std::exchange(has_told_of_other_, true)) {
    Say("the job is over, and another one has begun, which is not disturbed; waiting for the "
        "command's end");
  }
}

void ChaosRun::Carry(const std::vector<Campaign::Action>& actions) {
  for (const Campaign::Action& action : actions) {
    switch (action.kind) {
      case Campaign::Action::Kind::kBegin:
        BeginFault(action.index);
        break;
      case Campaign::Action::Kind::kLift:
        LiftFault(action.index);
        break;
      case Campaign::Action::Kind::kEnd:
        injector_.GiveUpBeginnings();
        TellAnswers();
        if (campaign_.end() == Campaign::End::kDone &&
            (StartsJob() || setting_.options.until_end)) {
          Say("the last fault is over; waiting for the job's end");
        }
        Carry(course_.OnCampaignEnd(campaign_.end()));
        break;
    }
  }
}

void ChaosRun::Carry(const std::vector<Course::Action>& actions) {
  for (const Course::Action& action : actions) {
    switch (action.kind) {
      case Course::Action::Kind::kStopCampaign:
        Carry(campaign_.Stop());
        break;
      case Course::Action::Kind::kEndJob:
        launches_->End(action.signal);
        break;
      case Course::Action::Kind::kKillJob:
        launches_->KillAll();
        break;
      case Course::Action::Kind::kPassSignal:
        launches_->Pass(action.signal);
        break;
      case Course::Action::Kind::kVerify:
        Verify();
        break;
      case Course::Action::Kind::kEndVerify:
        verify_->Signal(action.signal);
        break;
      case Course::Action::Kind::kKillVerify:
        verify_->Kill();
        OnVerifyEnd(128 + SIGKILL);
        break;
      case Course::Action::Kind::kFinish:
        Finish();
        break;
    }
  }
}

void ChaosRun::BeginFault(size_t index) {
  injector_.Begin(
      index, campaign_.records()[index].planned,
      [this, index](absl::StatusOr<Injector::Done> done) { OnFaultBegun(index, std::move(done)); });
}

void ChaosRun::OnFaultBegun(size_t index, absl::StatusOr<Injector::Done> done) {
  if (!done.ok()) {
    campaign_.OnSkipped(index, Now(), std::string(done.status().message()));
  } else {
    campaign_.OnBegun(index, Now(), std::move(done->what), done->expects);
  }
  if (campaign_.records()[index].state != FaultRecord::State::kPlanned) {
    Say(RecordText(campaign_, index));
  }
}

void ChaosRun::LiftFault(size_t index) {
  injector_.Lift(index);
  campaign_.OnLifted(index, Now());
  if (campaign_.records()[index].state == FaultRecord::State::kSkipped) {
    Say(RecordText(campaign_, index));
  }
}

void ChaosRun::TellAnswers() {
  for (size_t i = 0; i < campaign_.records().size(); ++i) {
    const FaultRecord::State state = campaign_.records()[i].state;
    const bool is_judged =
        state == FaultRecord::State::kAnswered || state == FaultRecord::State::kUnanswered;
    if (is_judged && !told_[i]) {
      told_[i] = true;
      Say(RecordText(campaign_, i));
    }
  }
}

void ChaosRun::OnOtherSignal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    Carry(course_.OnSignal(signal, Now()));
  } else {
    Say(kNoSuspending);
  }
}

// Whoever waits for the end of what it has started still gets that.
void ChaosRun::OnCannot(const absl::Status& why) {
  outcome_.could_not = std::string(why.message());
  Say(outcome_.could_not);
  Carry(course_.OnCannot());
}

void ChaosRun::OnJobEnd(const JobOver& over) {
  if (is_finished_ || outcome_.job_exit_code.has_value()) {
    return;
  }
  outcome_.job_exit_code = over.exit_code;
  outcome_.gone_for = over.gone_for;
  injector_.GiveUpBeginnings();
  Carry(campaign_.OnJobOver(Now(), over.exit_code));
  TellAnswers();
  Carry(course_.OnJobEnd(over.exit_code, Judge(campaign_, OutcomeNow()).is_good));
}

void ChaosRun::Verify() {
  verify_ =
      std::make_unique<ChildProcess>(loop_,
                                     ChildProcess::Hooks{[](const ChildProcess::Pipes&) {},
                                                         [this](int code) { OnVerifyEnd(code); },
                                                         [this](const absl::Status& why) {
                                                           Say(std::string(why.message()));
                                                           OnVerifyEnd(1);
                                                         }},
                                     ChildProcess::Reach::kGroup);
  using Stream = ChildProcess::Stream;
  verify_->Start({"/bin/sh", "-c", setting_.options.verify}, environment_,
                 {Stream::kNothing, Stream::kOfLauncher, Stream::kOfLauncher});
}

void ChaosRun::OnVerifyEnd(int code) {
  outcome_.verify_exit_code = code;
  Carry(course_.OnVerifyEnd());
}

void ChaosRun::Finish() {
  if (campaign_.began_at().has_value()) {
    outcome_.lasted = Now() - *campaign_.began_at();
  }
  is_finished_ = true;
  loop_.Stop();
}

void ChaosRun::SayWarning(const std::string& warning) {
  if (!warning.empty()) {
    Say(absl::StrCat("warning: ", warning));
  }
}

void ChaosRun::Say(const std::string& line) {
  console_.WriteLines(ConsoleStream::kError, absl::StrCat("fsdprun chaos: ", line));
}

}  // namespace fsdprun::chaos
