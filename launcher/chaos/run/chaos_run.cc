#include "launcher/chaos/run/chaos_run.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "fsdpctl/jobs/job_choice.h"
#include "launcher/chaos/plan/device_shares.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/private_folder.h"
#include "launcher/run/devices.h"

namespace fsdprun::chaos {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(20);
/// A job is taken to have ended when its coordinator has been nowhere for so long; a standby is
/// there much sooner.
constexpr Duration kGonePatience = std::chrono::seconds(35);

/// Whether all was written.
bool WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t size = ::write(fd, text.data() + done, text.size() - done);
    if (size < 0 && errno != EINTR) {
      return false;
    }
    done += size > 0 ? static_cast<size_t>(size) : 0;
  }
  return true;
}

absl::StatusOr<uint16_t> FreePort() {
  ASSIGN_OR_RETURN(const UniqueFd socket, BindListener({.address = "127.0.0.1", .port = 0}));
  return PortOf(socket);
}

}  // namespace

ChaosRun::ChaosRun(Setting setting, const Environment& environment)
    : setting_(std::move(setting)),
      environment_(environment),
      signals_(loop_,
               {{SIGINT, SIGTERM, SIGHUP}, [this](int signal) { Carry(course_.OnSignal(signal)); }},
               {{}, [](int) {}}),
      campaign_({.plan = setting_.plan,
                 .patience = setting_.options.patience,
                 .settle = setting_.options.settle,
                 .duration = setting_.options.duration,
                 .overlaps = setting_.options.overlaps,
                 .needs_full_world = setting_.wrapped.has_value()}),
      course_({.starts_job = setting_.wrapped.has_value(),
               .until_end = setting_.options.until_end,
               .has_verify = !setting_.options.verify.empty()}),
      injector_({.fill = setting_.options.fill,
                 .fill_leave = setting_.options.fill_leave,
                 .corrupt = setting_.options.corrupt,
                 .find = [this] { return FindProcesses(); },
                 .on_killed =
                     [this](int64_t pid) {
                       if (launches_ != nullptr) {
                         launches_->OnKilled(pid);
                       }
                     }}),
      told_(setting_.plan.faults.size()) {}

ChaosRun::~ChaosRun() = default;

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
  return Report() && Judge(campaign_, OutcomeNow()).is_good ? 0 : 1;
}

Outcome ChaosRun::OutcomeNow() const {
  Outcome outcome = outcome_;
  outcome.is_interrupted = course_.is_interrupted();
  outcome.job_runs_on = course_.job_runs_on();
  return outcome;
}

bool ChaosRun::Report() const {
  const Outcome outcome = OutcomeNow();
  if (!setting_.options.is_json) {
    return WriteAll(STDERR_FILENO, absl::StrCat("fsdprun chaos: ", ReportText(campaign_, outcome)));
  }
  if (WriteAll(setting_.report_fd, ReportJson(campaign_, outcome) + "\n")) {
    return true;
  }
  Say(absl::StrCat("cannot write the report to standard output: ", ErrorText(errno), "; ",
                   ReportText(campaign_, outcome)));
  return false;
}

absl::Status ChaosRun::Start() {
  RETURN_IF_ERROR(StartsJob() ? StartJob() : Attach());
  outcome_.seed = setting_.seed;
  if (setting_.seed.has_value() && setting_.options.schedule.empty()) {
    Say(setting_.options.duration.has_value()
            ? absl::StrCat("seed ", *setting_.seed)
            : absl::StrCat("seed ", *setting_.seed, ", ", setting_.plan.faults.size(), " faults"));
  }
  return absl::OkStatus();
}

absl::Status ChaosRun::StartJob() {
  ASSIGN_OR_RETURN(scratch_, ScratchFolder::Make(environment_));
  Environment environment = environment_;
  environment["TMPDIR"] = scratch_->path();
  launches_ =
      std::make_unique<Launches>(loop_, environment,
                                 Launches::Hooks{[this](int code) { OnJobEnd(code); },
                                                 [this](const absl::Status& why) { OnCannot(why); },
                                                 [this](const std::string& line) { Say(line); }});
  if (setting_.wrapped->form == Form::kNodes) {
    return StartNodes();
  }
  launches_->StartJob(setting_.wrapped->command);
  return absl::OkStatus();
}

absl::Status ChaosRun::StartNodes() {
  const WrappedJob& job = *setting_.wrapped;
  outcome_.run_id = job.run_id;
  ASSIGN_OR_RETURN(const std::vector<Environment> shares,
                   ShareDevices(job, CountGpus("", environment_), environment_));
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
  launches_->StartNodes(CoordinatorCommand(job, port, scratch_->path() + "/journal"), nodes,
                        shares);
  return absl::OkStatus();
}

absl::Status ChaosRun::Attach() {
  const std::vector<JobEntry> jobs = ListJobs(JobsFolder(RuntimeFolder(environment_)));
  if (jobs.empty()) {
    return absl::NotFoundError(
        "no job of this user has its coordinator on this machine: start one first, or give the "
        "command that starts it, as in fsdprun chaos -- fsdprun --nnodes 2 train.py");
  }
  ASSIGN_OR_RETURN(const JobEntry job, ChooseJob(jobs, setting_.options.job));
  outcome_.run_id = job.run_id;
  attached_ = std::make_shared<JobFollower>(job);
  return absl::OkStatus();
}

// What is started here may be anything that starts a job: that is one of a process below.
JobWatch::Find ChaosRun::Finder() {
  const auto list = [environment = environment_] {
    return ListJobs(JobsFolder(RuntimeFolder(environment)));
  };
  if (attached_ != nullptr) {
    return [list, follower = attached_] { return follower->Find(list()); };
  }
  return [list, own = ::getpid()]() -> std::optional<JobEntry> {
    for (const JobEntry& job : list()) {
      if (DescendsFrom(job.pid, own)) {
        return job;
      }
    }
    return std::nullopt;
  };
}

std::vector<JobProcess> ChaosRun::FindProcesses() const {
  return FindJobProcesses(
      {.job_id = view_.job_id,
       .coordinator_pid = view_.coordinator_pid,
       .launchers = launches_ != nullptr ? launches_->launchers() : std::map<int64_t, int>()});
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
  if (StartsJob() || is_finished_) {
    return;
  }
  const bool is_gone =
      campaign_.began_at().has_value() && !view_.is_there && MonoNow() - seen_at_ > kGonePatience;
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
  absl::StatusOr<Injector::Done> done = injector_.Begin(index, campaign_.records()[index].planned);
  if (!done.ok()) {
    campaign_.OnSkipped(index, MonoNow(), std::string(done.status().message()));
  } else {
    campaign_.OnBegun(index, MonoNow(), std::move(done->what), done->expects);
  }
  if (campaign_.records()[index].state != FaultRecord::State::kPlanned) {
    Say(RecordText(campaign_, index));
  }
}

void ChaosRun::LiftFault(size_t index) {
  injector_.Lift(index);
  campaign_.OnLifted(index, MonoNow());
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

// Whoever waits for the end of what it has started still gets that.
void ChaosRun::OnCannot(const absl::Status& why) {
  outcome_.could_not = std::string(why.message());
  Say(outcome_.could_not);
  Carry(course_.OnCannot());
}

void ChaosRun::OnJobEnd(int code) {
  if (is_finished_ || outcome_.job_exit_code.has_value()) {
    return;
  }
  outcome_.job_exit_code = code;
  Carry(campaign_.OnJobOver(MonoNow(), code));
  TellAnswers();
  Carry(course_.OnJobEnd(code, Judge(campaign_, OutcomeNow()).is_good));
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
    outcome_.lasted = MonoNow() - *campaign_.began_at();
  }
  is_finished_ = true;
  loop_.Stop();
}

void ChaosRun::Say(const std::string& line) const {
  WriteAll(STDERR_FILENO, absl::StrCat("fsdprun chaos: ", line, "\n"));
}

}  // namespace fsdprun::chaos
