#include "launcher/run/slurm_launcher.h"

#include <csignal>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/run/job_end.h"
#include "launcher/run/job_spec.h"
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
      output_(loop_, CliProgram::kFsdprun, plan_, environment_),
      head_(loop_, plan_, environment_, clocks_,
            {[this](const JobOutcome& outcome) { OnFinish(outcome); },
             [this] { OnCoordinatorStep(); }}) {}

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
  RETURN_IF_ERROR(head_.Start(/*token=*/""));
  LeaveRecord();
  queue_ = std::make_unique<SlurmQueue>(
      loop_, plan_, environment_,
      SlurmQueue::Hooks{[this](int signal) { OnSignal(signal); },
                        [this] { return IsStopping(head_.machine()); },
                        [this](const std::string& text) { output_.Print(text); }},
      SlurmQueue::UsualMeans(loop_, environment_));
  try_step_until_ = MonoNow() + means_.step_patience;
  StartStep();
  return absl::OkStatus();
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
                               .token = head_.place().token.value,
                               .coordinators = absl::StrJoin(head_.place().targets(), ","),
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
  if (!head_.machine().outcome().has_value() && lost_reason_.empty()) {
    if (is_news) {
      head_.host().OperatorStop(signal);
    }
  } else if (!step_code_.has_value() && !IsNotice(signal)) {
    // One that Slurm repeats is no sign of impatience, but Slurm itself will not wait for long.
    is_news ? step_stop_.Hurry(MonoNow()) : step_stop_.Begin(MonoNow());
    StopStep();
  }
}

void SlurmLauncher::OnForwardedSignal(int signal) {
  queue_->NotePassedSignal(signal);
  head_.host().ForwardSignal(signal);
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
    queue_->BeginEnd(outcome_, head_.machine());
    RemoveRecord();
  });
  if (head_.joined().empty()) {
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
  if (queue_ != nullptr) {
    queue_->OnStep(head_.machine());
  }
  output_.ShowProgress(head_.machine().progress());
  EndIfTooFewAreLeft();
}

void SlurmLauncher::ScheduleWaitNotice() {
  loop_.At(MonoNow() + means_.notice_interval, [this] {
    PrintWaitNotice();
    ScheduleWaitNotice();
  });
}

void SlurmLauncher::PrintWaitNotice() {
  if (step_->is_starting()) {
    output_.Print(
        "srun has not begun yet; see which folder on PATH, or file system of srun, does not "
        "answer");
  }
  if (const std::string text = head_.WaitText(); !text.empty()) {
    output_.Print(text);
  }
}

int SlurmLauncher::Finish() {
  for (const EventLoop::TimerId timer : {step_timer_, stop_timer_, queue_timer_, lost_timer_}) {
    loop_.Cancel(timer);
  }
  head_.host().Shutdown();
  RemoveRecord();
  const EndContext context{CliProgram::kFsdprun, plan_, environment_, output_.console(), loop_};
  if (outcome_.has_value()) {
    ReportOutcome(*outcome_, context);
  } else {
    ReportReason(lost_reason_, context);
  }
  queue_->EndRun(outcome_, head_.machine());
  record_.reset();
  const bool is_interrupted =
      outcome_.has_value() && outcome_->kind == OutcomeKind::kStoppedBySignal;
  return output_.Close(MonoNow() + (is_interrupted ? kInterruptedDrainTimeout : kDrainTimeout),
                       outcome_.has_value() ? outcome_->exit_code : 1);
}

}  // namespace fsdprun
