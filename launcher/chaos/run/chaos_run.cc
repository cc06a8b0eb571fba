#include "launcher/chaos/run/chaos_run.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "fsdpctl/jobs/job_choice.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/private_folder.h"
#include "launcher/run/machine.h"

namespace fsdprun::chaos {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(20);
/// A job is taken to have ended when its coordinator has been nowhere for so long; a standby is
/// there much sooner.
constexpr Duration kGonePatience = std::chrono::seconds(35);
/// What is told to end has its grace, and is killed after that.
constexpr Duration kEndPatience = std::chrono::seconds(60);
constexpr int kSecondSignal = 2;

/// All written, or what cannot be.
void WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t size = ::write(fd, text.data() + done, text.size() - done);
    if (size < 0 && errno != EINTR) {
      return;
    }
    done += size > 0 ? static_cast<size_t>(size) : 0;
  }
}

absl::StatusOr<uint16_t> FreePort() {
  ASSIGN_OR_RETURN(const UniqueFd socket, BindListener({.address = "127.0.0.1", .port = 0}));
  return PortOf(socket);
}

}  // namespace

ChaosRun::ChaosRun(Setting setting, const Environment& environment)
    : setting_(std::move(setting)),
      environment_(environment),
      signals_(loop_, {{SIGINT, SIGTERM, SIGHUP}, [this](int signal) { OnSignal(signal); }},
               {{}, [](int) {}}),
      campaign_({.plan = setting_.plan,
                 .patience = setting_.options.patience,
                 .duration = setting_.options.duration,
                 .overlaps = setting_.options.overlaps,
                 .needs_full_world = setting_.wrapped.has_value()}),
      injector_({.fill = setting_.options.fill,
                 .fill_leave = setting_.options.fill_leave,
                 .corrupt = setting_.options.corrupt,
                 .find =
                     [this] {
                       return FindJobProcesses({.run_id = view_.run_id,
                                                .coordinator_pid = view_.coordinator_pid,
                                                .launchers = launches_ != nullptr
                                                                 ? launches_->launchers()
                                                                 : std::map<int64_t, int>()});
                     },
                 .on_killed =
                     [this](int64_t pid) {
                       if (launches_ != nullptr) {
                         launches_->OnKilled(pid);
                       }
                     }}),
      told_(setting_.plan.faults.size()) {}

ChaosRun::~ChaosRun() {
  if (!journal_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(journal_, ignored);
  }
}

int ChaosRun::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    Say(std::string(status.message()));
    return 1;
  }
  watch_ = std::make_unique<JobWatch>(
      loop_, Finder(),
      JobWatch::Hooks{[this](const JobView& view) { OnView(view); },
                      [this](const std::string& what) { campaign_.OnFailure(what); },
                      [this](int code) { finished_code_ = code; }});
  Tick();
  loop_.Run();
  watch_.reset();
  outcome_.seed = setting_.seed;
  const std::string text = ReportText(campaign_, outcome_);
  if (setting_.options.is_json) {
    WriteAll(setting_.report_fd, ReportJson(campaign_, outcome_) + "\n");
  } else {
    WriteAll(STDERR_FILENO, absl::StrCat("fsdprun chaos: ", text));
  }
  return Judge(campaign_, outcome_).is_good ? 0 : 1;
}

absl::Status ChaosRun::Start() {
  RETURN_IF_ERROR(StartsJob() ? StartJob() : Attach());
  if (setting_.seed.has_value() && setting_.options.schedule.empty()) {
    Say(setting_.options.duration.has_value()
            ? absl::StrCat("seed ", *setting_.seed)
            : absl::StrCat("seed ", *setting_.seed, ", ", setting_.plan.faults.size(), " faults"));
  }
  return absl::OkStatus();
}

absl::Status ChaosRun::StartJob() {
  launches_ =
      std::make_unique<Launches>(loop_, environment_,
                                 Launches::Hooks{[this](int code) { OnJobEnd(code); },
                                                 [this](const absl::Status& why) {
                                                   Say(std::string(why.message()));
                                                   OnJobEnd(1);
                                                 },
                                                 [this](const std::string& line) { Say(line); }});
  if (setting_.wrapped->form == Form::kNodes) {
    return StartNodes();
  }
  launches_->StartJob(setting_.wrapped->command);
  return absl::OkStatus();
}

absl::Status ChaosRun::StartNodes() {
  const WrappedJob& job = *setting_.wrapped;
  run_id_ = job.run_id;
  const auto temporary = environment_.find("TMPDIR");
  ASSIGN_OR_RETURN(
      journal_,
      MakeFreshDir(temporary == environment_.end() ? "/tmp" : temporary->second, "fsdprun_chaos_"));
  ASSIGN_OR_RETURN(const uint16_t port, FreePort());
  std::vector<std::vector<std::string>> nodes;
  std::vector<TcpLink*> links;
  for (int i = 0; i < job.nodes; ++i) {
    links_.push_back(std::make_unique<TcpLink>(loop_, port));
    ASSIGN_OR_RETURN(const uint16_t own, links_.back()->Listen());
    links.push_back(links_.back().get());
    nodes.push_back(NodeCommand(job, own));
  }
  injector_.UseLinks(links);
  launches_->StartNodes(CoordinatorCommand(job, port, journal_), nodes);
  return absl::OkStatus();
}

absl::Status ChaosRun::Attach() {
  ASSIGN_OR_RETURN(const JobEntry job, ChooseJob(ListJobs(JobsFolder(RuntimeFolder(environment_))),
                                                 setting_.options.job));
  run_id_ = job.run_id;
  return absl::OkStatus();
}

// A command that is started once may be anything that starts a job: it is one of a process below.
JobWatch::Find ChaosRun::Finder() {
  if (!run_id_.empty()) {
    return
        [environment = environment_, run_id = run_id_] { return FindByRunId(environment, run_id); };
  }
  return [environment = environment_, own = ::getpid()]() -> std::optional<JobEntry> {
    for (const JobEntry& job : ListJobs(JobsFolder(RuntimeFolder(environment)))) {
      if (DescendsFrom(job.pid, own)) {
        return job;
      }
    }
    return std::nullopt;
  };
}

void ChaosRun::Tick() {
  if (is_finished_) {
    return;
  }
  loop_.At(MonoNow() + kTick, [this] { Tick(); });
  Carry(campaign_.Step(MonoNow(), view_));
  TellAnswers();
  LookForTheEnd();
}

void ChaosRun::OnView(const JobView& view) {
  if (view.answers) {
    view_ = view;
    outcome_.view = view;
    outcome_.run_id = view.run_id;
    answered_at_ = view.asked_at;
    WarnOfRestarts();
  } else {
    view_.answers = false;
  }
}

void ChaosRun::WarnOfRestarts() {
  if (!view_.Runs() || std::exchange(is_warned_, true) || setting_.options.duration.has_value()) {
    return;
  }
  if (const std::string warning = RestartWarning(setting_.plan, view_); !warning.empty()) {
    Say(absl::StrCat("warning: ", warning));
  }
}

void ChaosRun::LookForTheEnd() {
  if (StartsJob() || is_finished_ || !campaign_.began_at().has_value()) {
    return;
  }
  const bool is_gone = !view_.answers && MonoNow() - answered_at_ > kGonePatience;
  if (finished_code_.has_value() || view_.exit_code.has_value() || is_gone) {
    OnJobEnd(finished_code_.value_or(view_.exit_code.value_or(1)));
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
        OnCampaignEnd();
        break;
    }
  }
}

void ChaosRun::BeginFault(size_t index) {
  absl::StatusOr<Injector::Done> done = injector_.Begin(index, campaign_.records()[index].planned);
  if (!done.ok()) {
    campaign_.OnSkipped(index, MonoNow(), std::string(done.status().message()));
  } else {
    campaign_.OnBegun(index, MonoNow(), std::move(done->what), done->expects);
  }
  if (campaign_.records()[index].state != FaultRecord::State::kPlanned) {
    Say(RecordText(campaign_.records(), index));
  }
}

void ChaosRun::LiftFault(size_t index) {
  injector_.Lift(index);
  campaign_.OnLifted(index, MonoNow());
}

void ChaosRun::TellAnswers() {
  for (size_t i = 0; i < told_.size(); ++i) {
    const FaultRecord::State state = campaign_.records()[i].state;
    const bool is_judged =
        state == FaultRecord::State::kAnswered || state == FaultRecord::State::kUnanswered;
    if (is_judged && !told_[i]) {
      told_[i] = true;
      Say(RecordText(campaign_.records(), i));
    }
  }
}

void ChaosRun::OnCampaignEnd() {
  TellAnswers();
  if (campaign_.began_at().has_value()) {
    outcome_.lasted = MonoNow() - *campaign_.began_at();
  }
  switch (campaign_.end()) {
    case Campaign::End::kDone:
      if (!StartsJob() && !setting_.options.until_end) {
        outcome_.job_runs_on = true;
        Finish();
      } else {
        Say("the last fault is over; waiting for the job's end");
      }
      return;
    case Campaign::End::kNotSurvived:
    case Campaign::End::kNeverRan:
      EndJob(SIGTERM);
      return;
    default:
      return;
  }
}

// What was not started here is left alone.
void ChaosRun::EndJob(int signal) {
  if (!StartsJob()) {
    outcome_.job_runs_on = true;
    Finish();
    return;
  }
  launches_->End(signal);
  if (!std::exchange(is_ending_, true)) {
    kill_timer_ = loop_.At(MonoNow() + kEndPatience, [this] { launches_->KillAll(); });
  }
}

void ChaosRun::OnSignal(int signal) {
  if (++signals_got_ >= kSecondSignal && launches_ != nullptr) {
    launches_->KillAll();
    return;
  }
  Carry(campaign_.Stop(MonoNow()));
  if (verify_ != nullptr) {
    verify_->Signal(signal);
  } else if (!is_finished_) {
    EndJob(signal);
  }
}

void ChaosRun::OnJobEnd(int code) {
  if (is_finished_ || outcome_.job_exit_code.has_value()) {
    return;
  }
  outcome_.job_exit_code = code;
  if (campaign_.began_at().has_value() && !outcome_.lasted.has_value()) {
    outcome_.lasted = MonoNow() - *campaign_.began_at();
  }
  Carry(campaign_.OnJobOver(MonoNow(), code));
  TellAnswers();
  if (setting_.options.verify.empty() || !Judge(campaign_, outcome_).is_good) {
    Finish();
  } else {
    Verify();
  }
}

void ChaosRun::Verify() {
  const auto end = [this](int code) {
    outcome_.verify_exit_code = code;
    Finish();
  };
  verify_ = std::make_unique<ChildProcess>(
      loop_, ChildProcess::Hooks{[](const ChildProcess::Pipes&) {}, end,
                                 [this, end](const absl::Status& why) {
                                   Say(std::string(why.message()));
                                   end(1);
                                 }});
  using Stream = ChildProcess::Stream;
  verify_->Start({"/bin/sh", "-c", setting_.options.verify}, environment_,
                 {Stream::kNothing, Stream::kOfLauncher, Stream::kOfLauncher});
}

void ChaosRun::Finish() {
  is_finished_ = true;
  loop_.Cancel(kill_timer_);
  loop_.Stop();
}

void ChaosRun::Say(const std::string& line) const {
  WriteAll(STDERR_FILENO, absl::StrCat("fsdprun chaos: ", line, "\n"));
}

}  // namespace fsdprun::chaos
