#include "launcher/run/slurm_launcher.h"

#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/free_port.h"
#include "launcher/directory/job_token.h"
#include "launcher/run/job_end.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/notices.h"
#include "launcher/run/tls_setup.h"
#include "launcher/slurm/requeue.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun {
namespace {

/// How long agents that were released may show what is left of their workers' output.
constexpr Duration kStepEndTimeout = std::chrono::seconds(60);
/// How long the queue waits for them: where a node hangs, the time limit may end before the step.
constexpr Duration kQueueTimeout = std::chrono::seconds(5);
/// How long a stalled reader of our output may delay the exit.
constexpr Duration kDrainTimeout = std::chrono::seconds(60);
constexpr Duration kInterruptedDrainTimeout = std::chrono::seconds(2);
constexpr size_t kTokenBytes = 32;

std::string RestartsText(const SlurmAllocation& allocation) {
  return allocation.restart_count > 0 ? absl::StrCat(allocation.restart_count) : "";
}

}  // namespace

SlurmLauncher::SlurmLauncher(const LaunchPlan& plan, const Environment& environment,
                             const SlurmAllocation& allocation, std::vector<std::string> command,
                             Means means)
    : plan_(plan),
      environment_(environment),
      allocation_(allocation),
      nodes_(allocation.Nodes()),
      command_(std::move(command)),
      means_(std::move(means)),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      signals_(loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
               {plan_.forwarded_signals, [this](int signal) { OnForwardedSignal(signal); }}),
      output_(loop_, CliProgram::kFsdprun, plan_, environment_) {}

SlurmLauncher::~SlurmLauncher() = default;

int SlurmLauncher::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    output_.Print(status.message());
    output_.console().Close(MonoNow() + kDrainTimeout);
    return 1;
  }
  ScheduleWaitNotice();
  loop_.Run();
  return Finish();
}

absl::Status SlurmLauncher::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  RETURN_IF_ERROR(Host());
  LeaveRecord();
  queue_ = std::make_unique<SlurmQueue>(
      loop_, plan_, environment_,
      SlurmQueue::Hooks{[this](int signal) { OnSignal(signal); },
                        [this] { return IsStopping(host_->machine()); },
                        [this](const std::string& text) { output_.Print(text); }},
      SlurmQueue::UsualMeans(loop_, environment_));
  try_step_until_ = MonoNow() + means_.step_patience;
  StartStep();
  return absl::OkStatus();
}

absl::Status SlurmLauncher::Host() {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tls> tls, MakeTls(plan_));
  RETURN_IF_ERROR(CheckCanServe(tls.get()));
  ASSIGN_OR_RETURN(place_, HostOnFreePort({plan_, environment_}));
  ASSIGN_OR_RETURN(place_.token.value, TokenOf(plan_, environment_));
  if (place_.token.value.empty()) {
    place_.token.value = RandomHex(kTokenBytes);
  }
  CoordinatorHost::Hooks hooks;
  hooks.on_finish = [this](const JobOutcome& outcome) { OnFinish(outcome); };
  hooks.on_step = [this] { OnCoordinatorStep(); };
  host_ = std::make_unique<CoordinatorHost>(
      loop_,
      CoordinatorHost::Options{MakeJobSpec(plan_, clocks_), plan_.rdzv_id, place_.token.value,
                               clocks_.stream_silence, tls},
      std::move(hooks));
  door_ = std::make_unique<StoreServer>(loop_, StoreServer::Limits{}, [this](UniqueFd connection) {
    host_->AddConnection(std::move(connection));
  });
  for (UniqueFd& listener : place_.listeners) {
    FSDPRUN_CHECK(door_->ListenOn(std::move(listener)).ok(), "the listening socket is bound");
  }
  place_.listeners.clear();
  // Who speaks here for nodes that cannot takes no answers.
  host_->local_link().SetCallbacks({[] {}, [](const ToAgent&) {}, [](const LinkLoss&) {}});
  host_->local_link().Open(/*patience=*/1);
  return host_->Start();
}

void SlurmLauncher::LeaveRecord() {
  if (plan_.min_nodes == plan_.max_nodes) {
    return;  // It takes no more nodes.
  }
  std::error_code error;
  const SlurmJoinRecord record{.job = allocation_.JobName(),
                               .cluster = allocation_.cluster,
                               .run_id = plan_.rdzv_id,
                               .restarts = RestartsText(allocation_),
                               .token = place_.token.value,
                               .coordinators = absl::StrJoin(place_.targets(), ","),
                               .folder = std::filesystem::current_path(error).string(),
                               .command = command_,
                               .environment = RecordedEnvironment(environment_),
                               .resources = GrantedResources(environment_)};
  record_ = std::make_unique<OwnJoinRecord>(loop_, environment_, record, means_.record_files(loop_),
                                            means_.record_timeout);
}

// The queue does not wait for it.
void SlurmLauncher::RemoveRecord() {
  if (record_ != nullptr) {
    record_->Remove();
  }
}

void SlurmLauncher::OnSignal(int signal) {
  queue_->NoteSignal(signal);
  const bool is_news = IsNews(own_signal_, signal);
  own_signal_ = own_signal_ == 0 ? signal : own_signal_;
  if (!host_->machine().outcome().has_value() && lost_reason_.empty()) {
    if (is_news) {
      host_->OperatorStop(signal);
    }
  } else if (!step_code_.has_value() && !IsNotice(signal)) {
    // One that Slurm repeats is no sign of impatience, but Slurm itself will not wait for long.
    is_news ? step_stop_.Hurry(MonoNow()) : step_stop_.Begin(MonoNow());
    StopStep();
  }
}

void SlurmLauncher::OnForwardedSignal(int signal) {
  queue_->NotePassedSignal(signal);
  host_->ForwardSignal(signal);
}

void SlurmLauncher::OnFinish(const JobOutcome& outcome) {
  outcome_ = outcome;
  loop_.Cancel(step_timer_);
  loop_.Cancel(lost_timer_);
  if (step_ != nullptr && step_->is_starting()) {  // It has begun nothing, and may never do so.
    step_->Kill();
    step_code_ = 1;
  }
  if (step_code_.has_value()) {
    loop_.Stop();
    return;
  }
  queue_timer_ = loop_.At(MonoNow() + kQueueTimeout, [this] {
    queue_->BeginEnd(outcome_, host_->machine());
    RemoveRecord();
  });
  if (joined_.empty()) {
    EndStep();  // It may not have begun yet, and there is nobody whose output could be lost.
    return;
  }
  if (!step_stop_.has_begun()) {
    stop_timer_ = loop_.At(MonoNow() + kStepEndTimeout, [this] {
      output_.Print(absl::StrCat("the job is over, but its step has not ended within ",
                                 ToSeconds(kStepEndTimeout), " s (a node may be lost); ending it"));
      EndStep();
    });
  }
}

void SlurmLauncher::OnCoordinatorStep() {
  NoteAdmissions();
  if (queue_ != nullptr) {
    queue_->OnStep(host_->machine());
  }
  output_.ShowProgress(host_->machine().progress());
  EndIfTooFewAreLeft();
}

// Most steps are heartbeats, which bring nobody.
void SlurmLauncher::NoteAdmissions() {
  const uint64_t admissions = host_->machine().admissions();
  if (std::exchange(admissions_, admissions) == admissions) {
    return;
  }
  for (const job::Node& node : host_->machine().nodes()) {
    joined_.insert(node.info.name);
  }
}

void SlurmLauncher::ScheduleWaitNotice() {
  loop_.At(MonoNow() + means_.notice_interval, [this] {
    PrintWaitNotice();
    ScheduleWaitNotice();
  });
}

void SlurmLauncher::PrintWaitNotice() {
  const JobMachine& job = host_->machine();
  if (step_->is_starting()) {
    output_.Print(
        "srun has not begun yet; see which folder on PATH, or file system of srun, does not "
        "answer");
  }
  if (job.is_pausing()) {
    output_.Print(std::string(job.reason()));
  } else if (job.phase() == job::Phase::kRendezvous) {
    output_.Print(absl::StrCat(std::string(job.reason()), " (",
                               DescribeWait(job.join_deadline(), plan_.join_timeout, MonoNow()),
                               ")"));
  }
}

int SlurmLauncher::Finish() {
  for (const EventLoop::TimerId timer : {step_timer_, stop_timer_, queue_timer_, lost_timer_}) {
    loop_.Cancel(timer);
  }
  host_->Shutdown();
  RemoveRecord();
  const EndContext context{CliProgram::kFsdprun, plan_, environment_, output_.console(), loop_};
  if (outcome_.has_value()) {
    ReportOutcome(*outcome_, context);
  } else {
    ReportReason(lost_reason_, context);
  }
  queue_->EndRun(outcome_, host_->machine());
  record_.reset();
  const bool is_interrupted =
      outcome_.has_value() && outcome_->kind == OutcomeKind::kStoppedBySignal;
  output_.console().Close(MonoNow() + (is_interrupted ? kInterruptedDrainTimeout : kDrainTimeout));
  return outcome_.has_value() ? outcome_->exit_code : 1;
}

}  // namespace fsdprun
